"""What a run says of itself: read from its folder, printed, and put into one HTML file.

    folder     what lies in a run's folder, and what is wrong with it
    outlines   its episodes, without their turns
    history    the bank from version to version
    terminal   what is printed
    episodes   which episodes to show, and their records replayed turn by turn
    charts     the figures, as Vega-Lite; made of `marks`
    heading    the top of the page, and `tables` below it, as HTML
    build      all of it put into data/report/page.html

`charts`, `marks`, `tables` and `build` need the extra `report`.
"""
