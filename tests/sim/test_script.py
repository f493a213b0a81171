"""Model names and script files: what they stand for, and how a mistake is told."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from streamguard.errors import ConfigError
from streamguard.sim.faults import Encode, ResetPeer, Slicer
from streamguard.sim.script import Generated, Model, OnAccept, Script, load_script, resolve

RECORDINGS = {"capital"}


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("generated", Model()),
        (
            "generated?course=dip&at=12&low=0.02",
            Model(generated=Generated(course="dip", at=12, low=0.02)),
        ),
        (
            "generated?course=list&probabilities=0.9,0.1",
            Model(generated=Generated(course="list", probabilities=(0.9, 0.1))),
        ),
        ("recorded/capital", Model(recorded="capital")),
        ("recorded/capital?speed=2.5", Model(recorded="capital", speed=2.5)),
        ("fault/reset_peer", Model(fault=ResetPeer(after=5))),
        (
            "fault/slicer?bytes=3&length=9",
            Model(fault=Slicer(bytes=3), generated=Generated(length=9)),
        ),
        ("fault/encode?coding=zstd", Model(fault=Encode(coding="zstd"))),
    ],
)
def test_a_name_stands_for(name: str, model: Model) -> None:
    """Kind, name and options, all in one word."""
    assert resolve(name, Script(), RECORDINGS) == model


def test_names_of_a_script_come_first() -> None:
    """Even before names that mean something already."""
    mine = Model(generated=Generated(length=1))
    assert resolve("generated", Script(models={"generated": mine}), RECORDINGS) is mine


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gpt-4", "model: there is no 'gpt-4'; use one of generated, fault/latency"),
        ("generatd", "did you mean 'generated'?"),
        ("recorded/captial", "there is no 'recorded/captial'"),
        ("generated?length=0", "model.length: can't be used; expected `int` >= 1"),
        ("generated?probability=1.5", "model.probability: can't be used; expected `float` <= 1"),
        ("generated?probability=nan", "model.probability: can't be used; expected"),
        ("generated?course=list", "`probabilities` belongs to `course"),
        ("generated?shape=soap", "model.shape: can't be used; invalid enum value 'soap'"),
        ("recorded/capital?pace_ms=1", "model.pace_ms: is no key here; use one of speed"),
        ("recorded/capital?speed=0", "model.speed: can't be used; expected `float` > 0"),
        ("fault/reset_peer?after=-1", "model.after: can't be used; expected `int` >= 0"),
        ("fault/reset_peer?afer=1", "model.afer: is no key here"),
    ],
)
def test_a_name_that_can_not_be_meant(name: str, says: str) -> None:
    """The complaint says which part, and what may stand there."""
    with pytest.raises(ConfigError) as caught:
        resolve(name, Script(), RECORDINGS)
    assert says in str(caught.value)


def test_a_script_is_read(tmp_path: Path) -> None:
    """Everything a script can say."""
    path = tmp_path / "script.toml"
    path.write_text(
        """
        speed = 5
        [on_accept]
        kind = "silent"
        connections = 3
        [models.doubtful]
        generated = {course = "falling", length = 300, entries_per_event = 4}
        fault = {kind = "reset_peer", after = 40}
        [models."my/slow one"]
        recorded = "capital"
        speed = 0.5
        """
    )
    assert load_script(path, RECORDINGS) == Script(
        speed=5.0,
        on_accept=OnAccept(kind="silent", connections=3),
        models={
            "doubtful": Model(
                generated=Generated(course="falling", length=300, entries_per_event=4),
                fault=ResetPeer(after=40),
            ),
            "my/slow one": Model(recorded="capital", speed=0.5),
        },
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("speed = ", "is not valid TOML"),
        ("sped = 2", ": sped: is no key here; did you mean 'speed'?"),
        ("speed = 'fast'", ": speed: can't be used; expected `float`, got `str`"),
        ("speed = true", ": speed: can't be used; expected `float`, got `bool`"),
        ("models = 3", ": models: is no table"),
        ("[on_accept]\nkind = 'fin'", ": on_accept.kind: can't be used; invalid enum value 'fin'"),
        ("[on_accept]\nconnections = 1", ": on_accept: can't be used; object missing required"),
        ("[models.a]\nrecorded = 'b'", ": models.a.recorded: there is no such recording"),
        ("[models.a]\nrecorded = 'capital'\ngenerated = {}", ": models.a: is both recorded and"),
        ("[models.a]\nspeed = 2", ": models.a.speed: belongs to a recording"),
        ("[models.a]\ngenerated = {lenght = 1}", ": models.a.generated.lenght: is no key here"),
        ("[models.a]\ngenerated = {length = '1'}", ": models.a.generated.length: can't be used"),
        ("[models.a]\nfault = 'rst'", ": models.a.fault: is no table"),
        ("[models.a]\nfault = {after = 1}", ": models.a.fault.kind: is missing; use one of"),
        ("[models.a]\nfault = {kind = 'encod'}", "is not known; did you mean 'encode'?"),
        ("[models.a]\nfault = {kind = 'no_done', x = 1}", "fault.x: is no key here; nothing may"),
        ("[models.a]\nfault = {kind = 'encode', coding = 'x'}", "fault.coding: can't be used"),
    ],
)
def test_a_script_that_can_not_be_meant(tmp_path: Path, text: str, says: str) -> None:
    """The complaint names the file, the key path, and what may stand there."""
    path = tmp_path / "script.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_script(path, RECORDINGS)
    assert str(caught.value).startswith(str(path))
    assert says in str(caught.value)


def test_a_script_that_can_not_be_read(tmp_path: Path) -> None:
    """A missing file and one that is no text."""
    with pytest.raises(ConfigError, match="No such file"):
        load_script(tmp_path / "none.toml", RECORDINGS)
    (tmp_path / "binary.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        load_script(tmp_path / "binary.toml", RECORDINGS)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"length": 3}, [0.9, 0.9, 0.9]),
        ({"length": 3, "course": "falling", "low": 0.1}, [0.9, 0.5, 0.1]),
        ({"length": 1, "course": "falling"}, [0.9]),
        ({"length": 5, "course": "dip", "at": 2, "width": 2}, [0.9, 0.05, 0.05, 0.9, 0.9]),
        ({"length": 3, "course": "list", "probabilities": (1.0, 0.5)}, [1.0, 0.5, 1.0]),
    ],
)
def test_a_course(fields: dict[str, Any], expected: list[float]) -> None:
    """The probability of each token, from the first."""
    spec = Generated(**fields)
    found = [math.exp(spec.logprob(number)) for number in range(1, spec.length + 1)]
    assert found == pytest.approx(expected)
