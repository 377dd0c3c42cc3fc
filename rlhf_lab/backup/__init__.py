"""Backups of a whole home: for moving a lab between machines and versions, and for mirrors. Does not import torch.

snapshot         copies the database and the files that belong to it, at one point in time
restore          replaces the content of a home by the files of a snapshot
archive          a snapshot as one zip file
hub_mirror       saves snapshots to a private dataset repository on the Hub, and restores them
hub_repository   the requests to that repository
mirror_records   manifest of a save, and state of a mirror
mirror_settings  repository and token that the operator entered
process_rows     removes rows about running processes from a copied database
"""
