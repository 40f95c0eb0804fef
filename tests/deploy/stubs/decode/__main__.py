from stub import main

main("decode")
