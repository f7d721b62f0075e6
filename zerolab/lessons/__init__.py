"""What surrounds the lessons: the learner's folder, guesses, progress, and the recordings that the package ships."""
