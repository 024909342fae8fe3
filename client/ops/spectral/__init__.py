"""Spectra: Fourier transforms, short-time transforms, and windows.

May import `ops` and `tensor`.
"""
