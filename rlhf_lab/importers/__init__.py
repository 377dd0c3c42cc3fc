"""Import of preference data that others collected: files, Hub data sets, votes of several annotators.

    readers, hub_reader             JSON Lines, JSON, CSV, Parquet (also gzip), OWNER/NAME on the Hub -> rows
    layouts, comparisons            published layouts (docs/FORMATS.md); rows that are no pairs -> rows of two texts
    left_out                        rows that do not count
    column_mapping                  which column has which meaning
    cells                           whether a cell is a text, a chat, a vote or a list
    options                         more than two texts in a row
    speakers                        transcripts with speakers of their own
    memory_limit                    of an import
    cell_parsers                    numbers, times, votes and ids in cells
    row_options                     how rows are parsed; what votes call the texts of a row
    row_parser                      a row -> its prompt, texts and votes; every error names its row
    text_names                      which side a column means; columns with names of the texts
    questions                       what texts and numbers can mean besides what they seem to; the user says which
    remedies                        advice, for the command line and for the page
    parser                          a whole file -> ParsedFile (mapping, votes, errors); writes nothing
    parsed_rows                     the records that the parser returns
    project_index, deduplication    what the project has already, and to which pair a vote belongs
    writer                          votes into the tables in short transactions, on existing or new pairs
    summary                         previews and results as text and JSON
    text_corpus                     texts of one column, for PPO-ptx
    __main__                        an import in a process of its own, for the page

    parsed_file = parse_file(ImportRequest("votes.csv"))
    save_import(db, parsed_file, ImportTarget(project.id))

Only hub_reader loads torch, through `datasets`.
"""
