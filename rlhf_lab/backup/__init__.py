"""Copies of a whole home: for moving a lab between machines and versions, and for mirrors. No torch here.

snapshot    the database and the files that belong to it, at one moment
restore     files of a snapshot become the content of a home
archive     a snapshot as one zip
hub_mirror  snapshots in a private dataset repository on the Hub (hub_repository), with their records (mirror_records), and the
            rows that they leave out (process_rows)
"""
