"""Our side of iroh: the only package of the transport that imports the library.

`endpoint` owns the sockets and the key, `links` has connections and streams, `ffi_copy` replaces a slow method of the bindings,
and `own_address` keeps current the address at which others reach us. This package makes no decisions about peers.
"""
