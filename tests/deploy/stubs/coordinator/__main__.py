from stub import main

main("coordinator")
