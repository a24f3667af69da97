"""What goes over wires: canonical CBOR with limits, signatures, frames, messages, and differences of states."""
