"""Equipoise: one model that works for every data owner."""
