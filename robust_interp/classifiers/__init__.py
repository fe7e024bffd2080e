"""What is attacked: any model as a classifier of pixels, ensembles of them, and how names become them."""
