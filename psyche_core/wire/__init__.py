"""Communication between machines: canonical CBOR with limits, signatures, frames, messages, and differences of states."""
