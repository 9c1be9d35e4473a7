"""The embedded Tinker server: the wire protocol of the Tinker service over an engine of torch and transformers."""
