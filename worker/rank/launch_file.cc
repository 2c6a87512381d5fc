#include "worker/rank/launch_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/io/file.h"
#include "common/spec/job_json.h"

namespace sft::rank {
namespace {

// Besides what the channel checks.
absl::Status Check(const channel::RankLaunch& launch, const spec::JobSpec& spec) {
  if (launch.device != "cpu" && launch.device != "cuda") {
    return InvalidArgument(fmt::format("device is \"cpu\" or \"cuda\", not \"{}\"", launch.device));
  }
  if (launch.threads_per_rank < 1) return InvalidArgument("threads_per_rank is below 1");
  for (const auto& [name, value] :
       {std::pair("model_dir", &launch.model_dir),
        spec.serves() ? std::pair("serve_socket", &launch.serve_socket)
                      : std::pair("train_file", &launch.train_file),
        std::pair("cache_dir", &launch.cache_dir), std::pair("attempt_dir", &launch.attempt_dir),
        std::pair("output_dir", &launch.output_dir)}) {
    if (value->empty()) return InvalidArgument(fmt::format("{} is empty", name));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Launch> ReadLaunch(const std::string& path) {
  SFT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(path, int64_t{1} << 26));
  auto file = channel::ParseRankLaunch(text);
  if (!file.ok()) return Annotate(file.status(), path);
  const auto json = ParseJson(file->job_json);
  if (json.is_discarded()) return InvalidArgument(path + ": job_json is not JSON");
  auto spec = spec::FromJson(json);
  if (!spec.ok()) return Annotate(spec.status(), path + ": job_json");
  if (const absl::Status status = Check(*file, *spec); !status.ok()) return Annotate(status, path);
  return Launch{*std::move(file), *std::move(spec)};
}

std::string EventPath(const Launch& launch, const std::string& process) {
  return fmt::format("{}/{}.events", launch.file.attempt_dir, process);
}

}  // namespace sft::rank
