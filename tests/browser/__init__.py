"""Tests that drive a real Chromium. A package, so that fixtures of scope "package" end with the last test of this folder."""
