"""What every test relies on."""

from __future__ import annotations

import signal

# A shell without job control starts what it puts in the background with SIGINT ignored, and children inherit that; the
# tests of Ctrl-C need it to arrive.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
