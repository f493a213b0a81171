"""What a relay costs, measured next to others that do the same work in the same minutes.

The upstream and all clients are one process on one core (`load`, `sender`, `caller`); each subject
is a process of its own on the other. Every round moves the same load from subject to subject in
random order, and a ratio is taken within one round, so that what the machine does meanwhile hits
both of its sides.

The events are those of the simulated provider's model `generated`, rendered once. The sending is
our own: the provider makes every event anew, in a task per connection, which costs a multiple of
what nginx needs to relay it; the load would then weigh more than what it weighs. And only a sender
that shares the client's clock and process can tell when an event left and when a close arrived.
"""
