"""One module a file format: bytes in, arrays out, and a clear word where the bytes are not what they should be."""
