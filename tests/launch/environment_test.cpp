// What each launcher's variables mean, and what is said when half of them are missing.
#include <map>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/launch/environment.h"

namespace tessera::launch::environment_test {
namespace {

using Variables = std::map<std::string, std::string>;

Environment of(const Variables& variables) {
  return [variables](const std::string& name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    return it == variables.end() ? std::nullopt : std::optional(it->second);
  };
}

std::string complaint(const Variables& variables) {
  try {
    find_place(of(variables));
  } catch (const ConfigError& error) {
    return base::message_of(error);
  }
  return "no complaint";
}

TEST(Place, NothingWithoutALauncher) {
  EXPECT_FALSE(find_place(of({})));
  EXPECT_FALSE(find_place(of({{"MASTER_ADDR", "a"}, {"LOCAL_RANK", "1"}})));
  // In a batch script, or a shell of salloc.
  EXPECT_FALSE(find_place(of({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "5"}})));
}

TEST(Place, OfTorchrun) {
  const Variables variables = {{"RANK", "5"},
                               {"WORLD_SIZE", "8"},
                               {"LOCAL_WORLD_SIZE", "4"},
                               {"MASTER_ADDR", "node7"},
                               {"MASTER_PORT", "29400"},
                               {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                               {"TORCHELASTIC_RUN_ID", "x"},
                               {"TORCHELASTIC_RESTART_COUNT", "2"},
                               {"SLURM_PROCID", "1"},
                               {"SLURM_STEP_ID", "0"},
                               {"OMPI_COMM_WORLD_RANK", "0"},
                               {"OMPI_COMM_WORLD_SIZE", "1"}};
  const auto place = find_place(of(variables));
  ASSERT_TRUE(place);
  EXPECT_EQ(place->rank, 5);
  EXPECT_EQ(place->size, 8);
  EXPECT_EQ(place->local_size, 4);
  EXPECT_EQ(place->host, "node7");
  EXPECT_EQ(place->port, 29400);
  EXPECT_TRUE(place->store_is_served);
  EXPECT_EQ(place->attempt, "x.2");
  auto own = variables;
  own["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  EXPECT_FALSE(find_place(of(own))->store_is_served);
}

TEST(Place, OfMpirun) {
  const Variables variables = {{"OMPI_COMM_WORLD_RANK", "1"},
                               {"OMPI_COMM_WORLD_SIZE", "4"},
                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                               {"PMIX_NAMESPACE", "job-1"}};
  const auto place = find_place(of(variables));
  ASSERT_TRUE(place);
  EXPECT_EQ(place->rank, 1);
  EXPECT_EQ(place->size, 4);
  EXPECT_EQ(place->host, "127.0.0.1");
  EXPECT_GE(place->port, 20000);
  EXPECT_LT(place->port, 30000);
  auto other = variables;
  other["OMPI_COMM_WORLD_RANK"] = "2";
  EXPECT_EQ(find_place(of(other))->port, place->port);
  other["PMIX_NAMESPACE"] = "job-2";
  EXPECT_NE(find_place(of(other))->port, place->port);

  const auto mpich = find_place(of(
      {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1234"}}));
  ASSERT_TRUE(mpich);
  EXPECT_EQ(mpich->rank, 3);
  EXPECT_EQ(mpich->local_size, 2);
  EXPECT_EQ(mpich->port, 1234);
}

TEST(Place, OfSrun) {
  Variables variables = {{"SLURM_PROCID", "5"},
                         {"SLURM_NTASKS", "99"},
                         {"SLURM_STEP_NUM_TASKS", "7"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_JOB_ID", "4711"},
                         {"SLURM_STEP_NODELIST", "node[007-009,12],other"},
                         {"SLURM_NODEID", "2"},
                         {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
                         {"PMI_RANK", "5"}};
  const auto place = find_place(of(variables));
  ASSERT_TRUE(place);
  EXPECT_EQ(place->rank, 5);
  EXPECT_EQ(place->size, 7);
  EXPECT_EQ(place->local_size, 2);
  EXPECT_EQ(place->host, "node007");
  variables["SLURM_NODEID"] = "3";
  EXPECT_EQ(find_place(of(variables))->local_size, 1);
  EXPECT_EQ(find_place(of(variables))->port, place->port);
  variables["SLURM_STEP_ID"] = "1";
  EXPECT_NE(find_place(of(variables))->port, place->port);
  variables["MASTER_ADDR"] = "head";
  variables["MASTER_PORT"] = "77";
  EXPECT_EQ(find_place(of(variables))->host, "head");
  EXPECT_EQ(find_place(of(variables))->port, 77);
}

TEST(Place, HalfAnEnvironmentIsToldWhatIsMissing) {
  const auto says = [](const Variables& variables, const std::string& missing, const std::string& advice) {
    const auto text = complaint(variables);
    EXPECT_NE(text.find(missing + " is not; "), std::string::npos) << text;
    EXPECT_NE(text.find(advice), std::string::npos) << text;
  };
  says({{"RANK", "0"}}, "WORLD_SIZE", "unset both to run ranks as threads");
  says({{"WORLD_SIZE", "2"}}, "RANK", "set both");
  says({{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "MASTER_ADDR", "where rank 0 can be reached");
  says({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}, "MASTER_PORT", "where rank 0 can be reached");
  says({{"OMPI_COMM_WORLD_RANK", "0"}}, "OMPI_COMM_WORLD_SIZE", "set both");
  says({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
       "MASTER_ADDR", "mpirun -x MASTER_ADDR=");
  says({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}}, "MASTER_PORT", "mpirun -x MASTER_ADDR=");
  says({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_ID", "0"}}, "SLURM_JOB_ID",
       "start the program with srun");
  says({{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}}, "SLURM_NTASKS", "set both");
  EXPECT_NE(complaint({{"RANK", "2"}, {"WORLD_SIZE", "2"}})
                .find("RANK is \"2\" (from torchrun or tessera launch); accepted: 0 to 1"),
            std::string::npos);
  EXPECT_NE(complaint({{"RANK", "x"}, {"WORLD_SIZE", "2"}}).find("RANK is \"x\""), std::string::npos);
}

TEST(Place, FirstHostOfASlurmList) {
  EXPECT_EQ(first_host("a"), "a");
  EXPECT_EQ(first_host("a,b"), "a");
  EXPECT_EQ(first_host("a-1,b[1-3]"), "a-1");
  EXPECT_EQ(first_host("n[1-3,7],m"), "n1");
  EXPECT_EQ(first_host("n[09,12]-ib"), "n09-ib");
  EXPECT_THROW(first_host("n[09"), ConfigError);
}

TEST(LogRank, ChoosesWhoPrints) {
  EXPECT_TRUE(prints(0, of({})));
  EXPECT_FALSE(prints(1, of({})));
  EXPECT_TRUE(prints(3, of({{"LOG_RANK", "1,3"}})));
  EXPECT_FALSE(prints(0, of({{"LOG_RANK", "1,3"}})));
  EXPECT_TRUE(prints(9, of({{"LOG_RANK", "all"}})));
  EXPECT_THROW(prints(0, of({{"LOG_RANK", "a"}})), ConfigError);
}

}  // namespace
}  // namespace tessera::launch::environment_test
