// Runs the tests, or, started by one of them as `--body NAME`, one rank of a job.
#include <string>

#include <gtest/gtest.h>

#include "tests/launch/checkpoint_bodies.h"

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--body") {
    return tessera::launch::checkpoint_test::run_body(argv[2]);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
