"""What goes over wires: canonical CBOR with limits, signatures, frames, messages, and the pure books behind transports."""
