#include "tessera/launch/environment.h"

#include <cstdlib>

#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/base/text.h"

namespace tessera::launch {
namespace {

using comm::Place;

// Reads the variables of one launcher.
class Reader {
 public:
  Reader(const Environment& environment, std::string launcher)
      : environment_(environment), launcher_(std::move(launcher)) {}

  std::optional<std::string> text(const std::string& name) const { return environment_(name); }

  std::optional<int64_t> number(const std::string& name, int64_t least, int64_t most) const {
    const auto value = text(name);
    if (!value) {
      return std::nullopt;
    }
    const auto number = base::try_parse_int(*value);
    TESSERA_CHECK_AS(ConfigError, number && *number >= least && *number <= most, "[launch] ", name, " is \"", *value,
                     "\" (from ", launcher_, "); accepted: ", least, " to ", most);
    return number;
  }

  // What must be there because `sign` is.
  template <typename Value>
  Value need(const std::optional<Value>& value, const std::string& name, const std::string& sign,
             const std::string& advice) const {
    TESSERA_CHECK_AS(ConfigError, value, "[launch] ", sign, " is set (by ", launcher_, "?) but ", name, " is not; ",
                     advice);
    return *value;
  }

  const std::string& launcher() const { return launcher_; }

 private:
  const Environment& environment_;
  std::string launcher_;
};

constexpr int64_t kMostProcesses = 1 << 20;

// Rank and size under the names of one launcher; nothing if it left neither.
std::optional<Place> read_place(const Reader& reader, const std::string& rank_name, const std::string& size_name) {
  const auto size = reader.number(size_name, 1, kMostProcesses);
  const auto rank = reader.number(rank_name, 0, size.value_or(kMostProcesses) - 1);
  if (!rank && !size) {
    return std::nullopt;
  }
  const std::string advice = "set both, or unset both to run ranks as threads";
  Place place;
  place.size = reader.need(size, size_name, rank_name, advice);
  place.rank = reader.need(rank, rank_name, size_name, advice);
  place.local_size = place.size;
  place.launcher = reader.launcher();
  return place;
}

int port_of(const std::string& job) { return 20000 + static_cast<int>(base::hash_string(job) % 10000); }

// MASTER_ADDR and MASTER_PORT, where given.
void read_master(const Reader& reader, Place& place) {
  place.host = reader.text("MASTER_ADDR").value_or(place.host);
  place.port = static_cast<int>(reader.number("MASTER_PORT", 1, 65535).value_or(place.port));
}

std::optional<Place> find_torchrun(const Environment& environment) {
  const Reader reader(environment, "torchrun or tessera launch");
  auto place = read_place(reader, "RANK", "WORLD_SIZE");
  if (!place) {
    return std::nullopt;
  }
  const std::string advice = "set MASTER_ADDR and MASTER_PORT to where rank 0 can be reached";
  reader.need(reader.text("MASTER_ADDR"), "MASTER_ADDR", "RANK", advice);
  reader.need(reader.text("MASTER_PORT"), "MASTER_PORT", "RANK", advice);
  read_master(reader, *place);
  place->local_size = reader.number("LOCAL_WORLD_SIZE", 1, place->size).value_or(place->size);
  const auto agent = reader.text("TORCHELASTIC_USE_AGENT_STORE").value_or("");
  place->store_is_served = agent == "True" || agent == "true" || agent == "1";
  place->attempt =
      reader.text("TORCHELASTIC_RUN_ID").value_or("") + "." + reader.text("TORCHELASTIC_RESTART_COUNT").value_or("0");
  return place;
}

std::optional<Place> find_mpi(const Environment& environment, const std::string& launcher, const std::string& rank,
                              const std::string& size, const std::string& local,
                              const std::vector<std::string>& job_names) {
  const Reader reader(environment, launcher);
  auto place = read_place(reader, rank, size);
  if (!place) {
    return std::nullopt;
  }
  place->local_size = reader.number(local, 1, place->size).value_or(place->size);
  for (const auto& name : job_names) {
    if (const auto job = reader.text(name); job && place->port == 0) {
      place->port = port_of(*job);
    }
  }
  const bool is_one_machine = place->local_size == place->size;
  const std::string advice =
      "give it to all ranks, for example mpirun -x MASTER_ADDR=$(hostname) -x MASTER_PORT=29500 ...";
  if (!is_one_machine) {
    reader.need(reader.text("MASTER_ADDR"), "MASTER_ADDR", rank, advice);
  }
  read_master(reader, *place);
  reader.need(place->port ? std::optional(place->port) : std::nullopt, "MASTER_PORT", rank, advice);
  return place;
}

// The tasks of the node that runs this one, from `2(x3),1`; nothing if the text is something else.
std::optional<int64_t> tasks_of_node(const std::string& text, int64_t node) {
  for (size_t at = 0; at < text.size();) {
    const auto comma = std::min(text.find(',', at), text.size());
    const auto item = text.substr(at, comma - at);
    const auto times = item.find("(x");
    const auto tasks = base::try_parse_int(item.substr(0, times));
    const auto nodes =
        times == std::string::npos ? 1 : base::try_parse_int(item.substr(times + 2, item.size() - times - 3));
    if (!tasks || !nodes) {
      return std::nullopt;
    }
    if ((node -= *nodes) < 0) {
      return tasks;
    }
    at = comma + 1;
  }
  return std::nullopt;
}

std::optional<Place> find_slurm(const Environment& environment) {
  const Reader reader(environment, "srun");
  const auto step = reader.text("SLURM_STEP_ID");
  if (!step || !reader.text("SLURM_PROCID")) {
    return std::nullopt;  // a batch script or a shell has some of Slurm's variables too
  }
  auto place =
      read_place(reader, "SLURM_PROCID", reader.text("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS");
  const auto job =
      reader.need(reader.text("SLURM_JOB_ID"), "SLURM_JOB_ID", "SLURM_PROCID", "start the program with srun");
  place->port = port_of(job + "." + *step);
  const auto nodes = reader.text("SLURM_STEP_NODELIST");
  if (!reader.text("MASTER_ADDR")) {
    place->host = first_host(
        reader.need(nodes, "SLURM_STEP_NODELIST", "SLURM_PROCID", "start the program with srun, or set MASTER_ADDR"));
  }
  read_master(reader, *place);
  const auto node = reader.number("SLURM_NODEID", 0, kMostProcesses).value_or(0);
  const auto tasks = tasks_of_node(reader.text("SLURM_STEP_TASKS_PER_NODE").value_or(""), node);
  place->local_size = std::min(tasks.value_or(place->size), place->size);
  return place;
}

}  // namespace

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value && *value ? std::optional<std::string>(value) : std::nullopt;
  };
}

std::optional<Place> find_place(const Environment& environment) {
  if (auto place = find_torchrun(environment)) {
    return place;
  }
  if (auto place =
          find_mpi(environment, "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
                   {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"})) {
    return place;
  }
  if (environment("PMI_RANK") && !environment("SLURM_STEP_ID")) {
    return find_mpi(environment, "mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", {"PMI_ID"});
  }
  return find_slurm(environment);
}

std::string first_host(const std::string& nodelist) {
  const auto bracket = nodelist.find('['), comma = nodelist.find(',');
  if (bracket == std::string::npos || comma < bracket) {
    return nodelist.substr(0, comma);
  }
  const auto end = nodelist.find_first_of(",-]", bracket);
  const auto close = nodelist.find(']', bracket);
  TESSERA_CHECK_AS(ConfigError, close != std::string::npos, "[launch] the host list \"", nodelist,
                   "\" has no ]; accepted: node[01-03,7],other");
  const auto next = std::min(nodelist.find(',', close), nodelist.size());
  return nodelist.substr(0, bracket) + nodelist.substr(bracket + 1, end - bracket - 1) +
         nodelist.substr(close + 1, next - close - 1);
}

bool prints(int64_t rank, const Environment& environment) {
  const auto text = environment("LOG_RANK").value_or("0");
  if (text == "all") {
    return true;
  }
  for (size_t at = 0; at <= text.size();) {
    const auto comma = std::min(text.find(',', at), text.size());
    const auto number = base::try_parse_int(text.substr(at, comma - at));
    TESSERA_CHECK_AS(ConfigError, number && *number >= 0, "[launch] LOG_RANK is \"", text,
                     "\"; accepted: 0, 0,3 or all");
    if (*number == rank) {
      return true;
    }
    at = comma + 1;
  }
  return false;
}

}  // namespace tessera::launch
