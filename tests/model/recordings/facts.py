"""The tables that truth is computed from: plain facts, typed in here, owned by nobody.

Capitals are those in common English use without diacritics; countries whose seat of government
and capital differ, or which have moved theirs lately, are left out. Elements are by their IUPAC
names; a second spelling stands after a bar. Both lists go from what everybody knows to what few do,
on purpose: a model should be right on some and wrong on others.
"""

from __future__ import annotations

from typing import Final


def _table(text: str) -> dict[str, str]:
    rows = (line.partition(": ") for line in text.strip().splitlines())
    return {key: value for key, _, value in rows}


CAPITALS: Final = _table(
    """
Albania: Tirana
Algeria: Algiers
Angola: Luanda
Argentina: Buenos Aires
Armenia: Yerevan
Austria: Vienna
Azerbaijan: Baku
Bahrain: Manama
Bangladesh: Dhaka
Belarus: Minsk
Belgium: Brussels
Bhutan: Thimphu
Botswana: Gaborone
Bulgaria: Sofia
Burkina Faso: Ouagadougou
Cambodia: Phnom Penh
Canada: Ottawa
Chad: N'Djamena
China: Beijing
Croatia: Zagreb
Cuba: Havana
Denmark: Copenhagen
Djibouti: Djibouti
Ecuador: Quito
Egypt: Cairo
Eritrea: Asmara
Estonia: Tallinn
Ethiopia: Addis Ababa
Fiji: Suva
Finland: Helsinki
Gabon: Libreville
Germany: Berlin
Ghana: Accra
Greece: Athens
Guinea: Conakry
Guyana: Georgetown
Honduras: Tegucigalpa
Hungary: Budapest
Iceland: Reykjavik
India: New Delhi
Iran: Tehran
Iraq: Baghdad
Ireland: Dublin
Italy: Rome
Jamaica: Kingston
Jordan: Amman
Kenya: Nairobi
Latvia: Riga
Lebanon: Beirut
Liberia: Monrovia
Libya: Tripoli
Lithuania: Vilnius
Luxembourg: Luxembourg
Madagascar: Antananarivo
Malawi: Lilongwe
Mali: Bamako
Malta: Valletta
Mauritania: Nouakchott
Mexico: Mexico City
Mongolia: Ulaanbaatar|Ulan Bator
Morocco: Rabat
Mozambique: Maputo
Namibia: Windhoek
Nepal: Kathmandu
Nicaragua: Managua
Niger: Niamey
Norway: Oslo
Oman: Muscat
Peru: Lima
Poland: Warsaw
Portugal: Lisbon
Qatar: Doha
Romania: Bucharest
Russia: Moscow
Rwanda: Kigali
Senegal: Dakar
Serbia: Belgrade
Slovakia: Bratislava
Slovenia: Ljubljana
Spain: Madrid
Sudan: Khartoum
Suriname: Paramaribo
Sweden: Stockholm
Syria: Damascus
Thailand: Bangkok
Togo: Lome
Tunisia: Tunis
Uganda: Kampala
Uruguay: Montevideo
Vanuatu: Port Vila
Venezuela: Caracas
Vietnam: Hanoi
Zambia: Lusaka
Zimbabwe: Harare
"""
)
"""Country: capital. France and Japan are left out, they stand in the prompts."""

ELEMENTS: Final = _table(
    """
H: Hydrogen
He: Helium
Li: Lithium
Be: Beryllium
B: Boron
C: Carbon
N: Nitrogen
F: Fluorine
Ne: Neon
Na: Sodium
Mg: Magnesium
Al: Aluminium|Aluminum
Si: Silicon
P: Phosphorus
S: Sulfur|Sulphur
Cl: Chlorine
Ar: Argon
K: Potassium
Ca: Calcium
Ti: Titanium
Cr: Chromium
Mn: Manganese
Co: Cobalt
Ni: Nickel
Cu: Copper
Zn: Zinc
Ga: Gallium
As: Arsenic
Br: Bromine
Kr: Krypton
Sr: Strontium
Zr: Zirconium
Ag: Silver
Cd: Cadmium
Sn: Tin
Sb: Antimony
I: Iodine
Xe: Xenon
Cs: Caesium|Cesium
Ba: Barium
W: Tungsten
Pt: Platinum
Au: Gold
Hg: Mercury
Tl: Thallium
Bi: Bismuth
Rn: Radon
Ra: Radium
U: Uranium
Pu: Plutonium
"""
)
"""Symbol: name. Oxygen and iron are left out, they stand in the prompts."""
