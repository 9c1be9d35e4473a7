"""Embedded stand-ins for a fresh machine; everything else reaches them over HTTP alone."""
