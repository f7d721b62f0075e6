"""What surrounds the lessons: the learner's folder, guesses, progress, and recordings that the package ships."""
