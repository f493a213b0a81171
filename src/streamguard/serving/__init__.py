"""What every server shell shares: the listener, the reply, admission, draining, admin."""
