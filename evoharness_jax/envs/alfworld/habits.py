"""Where things tend to be: a few lines of common sense, and the order of a search.

    worth of a place = weight of its type / (how many there are * turns to look into it)

The weight falls with the rank of the type in what was recalled, or else in the list
below; what is on neither is looked at last.
"""

FOOD = "countertop fridge diningtable sinkbasin garbagecan microwave sidetable"
TOOL = "countertop diningtable drawer sinkbasin sidetable"
DISH = "countertop cabinet diningtable fridge sinkbasin shelf coffeemachine microwave"
COOKER = "stoveburner countertop cabinet diningtable fridge sinkbasin"
SPICE = "countertop cabinet diningtable drawer shelf sidetable"
BATH = "countertop toilet cabinet sinkbasin bathtubbasin garbagecan drawer shelf"
SMALL = "sidetable dresser desk coffeetable drawer shelf sofa bed diningtable tvstand"
PAPER = "desk sidetable dresser drawer shelf bed sofa coffeetable diningtable"
SOFT = "bed sofa armchair ottoman"
DECOR = "shelf coffeetable dresser sidetable countertop diningtable desk tvstand"
TENDS = {
    FOOD: "apple bread egg lettuce potato tomato",
    TOOL: "butterknife fork knife ladle spatula spoon",
    DISH: "bowl cup mug plate glassbottle winebottle",
    COOKER: "kettle pan pot",
    SPICE: "peppershaker saltshaker dishsponge",
    BATH: "soapbar soapbottle spraybottle toiletpaper candle cloth",
    SMALL: "alarmclock cellphone creditcard keychain remotecontrol watch box newspaper",
    PAPER: "book cd laptop pen pencil",
    SOFT: "pillow",
    DECOR: "statue vase tissuebox",
    "sidetable desk dresser shelf coffeetable": "desklamp floorlamp",
    "handtowelholder towelholder countertop": "handtowel towel",
}
LIKELY = {
    thing: tuple(places.split())
    for places, things in TENDS.items()
    for thing in things.split()
}
# Places that most things can be put down on.
SURFACES = (
    "countertop diningtable desk sidetable coffeetable dresser bed sofa shelf drawer "
    "cabinet garbagecan"
).split()
FALL, UNHEARD, UNLIKELY = 0.6, 0.3, 0.005


def weight(thing: str, place: str, told: list[str]) -> float:
    """Return how likely it is to find a thing at a kind of place.

    Args:
        told: kinds of places that recalled hints name for this thing, best first.
    """
    if place in told:
        return FALL ** told.index(place)
    likely = LIKELY.get(thing, ())
    common = FALL ** likely.index(place) if place in likely else UNLIKELY
    return common * (UNHEARD if told else 1.0)


def told_places(thing: str, hints: list[str], kinds: set[str]) -> list[str]:
    """Return the kinds of places that hints about a thing name, in their order."""
    told: list[str] = []
    for hint in hints:
        words = hint.lower().replace(",", " ").replace(":", " ").split()
        if thing in words:
            told += [w for w in words if w in kinds and w != thing and w not in told]
    return told
