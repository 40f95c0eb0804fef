from stub import main

main("prefill")
