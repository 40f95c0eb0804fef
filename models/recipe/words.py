"""The closed vocabulary of the generated problems: enough variety to need reading, no more."""

HE = (
    "Adam Ahmed Ben Carlos Daniel David Emil Felix George Hassan Hugo Ivan James Jamal Kenji Leo "
    "Liam Luis Marco Mark Noah Omar Oscar Paul Peter Ravi Sam Thomas Tom Victor"
).split()
SHE = (
    "Alice Amina Anna Bella Carla Chloe Clara Diana Elena Emma Fatima Grace Hana Iris Jane Julia "
    "Kate Laura Lena Lily Maria Maya Mia Nina Olivia Priya Rosa Sara Sofia Weng"
).split()

# Things one can own, buy, lose and share.
OBJECTS = (
    "apples|oranges|marbles|stickers|pencils|books|cookies|candies|cards|coins|balloons|shells|"
    "stamps|beads|muffins|flowers|toy cars|crayons|buttons|stones|eggs|cupcakes|peaches|ribbons|"
    "erasers|badges|postcards|plums|lemons|pears|nuts|puzzles"
).split("|")

# Things with a price, as (singular, plural).
GOODS = tuple(
    (word, word + "s")
    for word in (
        "notebook|pen|shirt|hat|toy|ticket|lamp|cup|plate|ball|scarf pin|game|bag|poster|cake|"
        "sandwich roll|juice bottle|kite|belt|towel|pillow|mug|plant|chair|magazine|basket"
    ).split("|")
)

CONTAINERS = "boxes bags baskets jars packs trays crates shelves drawers rows".split()
VEHICLES = "car bus train truck bike van boat tram".split()
JOBS = "a bakery|a farm|a library|a cafe|a garage|a museum|a shop|a school|a hotel".split("|")
ANIMALS = "chickens cows sheep goats ducks horses rabbits pigs".split()
MAKERS = ("machine", "factory", "printer", "baker", "robot", "worker")
PLACES = "school park town library farm market beach station museum lake".split()
