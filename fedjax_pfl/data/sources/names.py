"""Names of the classes of images, in the order of their labels."""

__all__ = ["CIFAR10", "CIFAR100_COARSE", "CIFAR100_FINE", "FASHION_MNIST"]

FASHION_MNIST = (
    *"T-shirt/top Trouser Pullover Dress Coat Sandal Shirt Sneaker Bag".split(),
    "Ankle boot",
)

CIFAR10 = tuple(
    """
    airplane automobile bird cat deer dog frog horse ship truck
    """.split()
)

CIFAR100_COARSE = tuple(
    """
    aquatic_mammals fish flowers food_containers fruit_and_vegetables
    household_electrical_devices household_furniture insects large_carnivores
    large_man-made_outdoor_things large_natural_outdoor_scenes
    large_omnivores_and_herbivores medium_mammals non-insect_invertebrates people
    reptiles small_mammals trees vehicles_1 vehicles_2
    """.split()
)

CIFAR100_FINE = tuple(
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy
    bridge bus butterfly camel can castle caterpillar cattle chair chimpanzee clock
    cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
    forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion
    lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange
    orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper
    snail snake spider squirrel streetcar sunflower sweet_pepper table tank
    telephone television tiger tractor train trout tulip turtle wardrobe whale
    willow_tree wolf woman worm
    """.split()
)
