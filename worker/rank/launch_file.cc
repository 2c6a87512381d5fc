#include "worker/rank/launch_file.h"

#include <fmt/format.h>

#include <algorithm>
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
        spec.serves()    ? std::pair("serve_socket", &launch.serve_socket)
        : spec.exports() ? std::pair("output_dir", &launch.output_dir)
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
  const size_t named = std::max<size_t>(1, spec->data.mixture.size());
  if (file->more_train_files.size() + 1 != named) {
    return InvalidArgument(fmt::format("{}: {} files with rows, but the job names {}", path,
                                       file->more_train_files.size() + 1, named));
  }
  if (const absl::Status status = Check(*file, *spec); !status.ok()) return Annotate(status, path);
  return Launch{*std::move(file), *std::move(spec)};
}

std::vector<channel::RowFile> TrainingFiles(const Launch& launch) {
  std::vector<channel::RowFile> files = {
      {launch.file.train_file, launch.file.train_name, launch.file.train_stamp}};
  files.insert(files.end(), launch.file.more_train_files.begin(),
               launch.file.more_train_files.end());
  return files;
}

std::vector<channel::RowFile> ValidationFiles(const Launch& launch) {
  if (!launch.file.val_file.empty()) {
    return {{launch.file.val_file, launch.file.val_name, launch.file.val_stamp}};
  }
  const bool split = launch.spec.training.validation.enabled && launch.spec.data.val.empty();
  return split ? TrainingFiles(launch) : std::vector<channel::RowFile>();
}

std::vector<engine::PrepareOptions> OptionsOfFiles(const Launch& launch,
                                                   const std::vector<channel::RowFile>& files,
                                                   OptionsOf options_of) {
  std::vector<engine::PrepareOptions> all, earlier;
  for (size_t i = 0; i < files.size(); ++i) {
    engine::PrepareOptions options =
        options_of(launch.spec, files[i].path, launch.file.cache_dir, i);
    options.one_of_several = files.size() > 1;
    options.name = files[i].name;
    options.stamp = files[i].stamp;
    earlier.push_back(options);
    options.earlier.assign(earlier.begin(), earlier.end() - 1);
    all.push_back(std::move(options));
  }
  return all;
}

std::string EventPath(const Launch& launch, const std::string& process) {
  return fmt::format("{}/{}.events", launch.file.attempt_dir, process);
}

}  // namespace sft::rank
