"""ALFWorld's household games: their engines, their words and a teacher."""
