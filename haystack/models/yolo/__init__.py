"""YOLOv5 and YOLOv7 with masks of instances, from files in which their authors saved whole models.

``network`` makes modules of what a file says, without the program that wrote it and without running
anything that is in it; ``predictor`` takes pictures of any size.
"""
