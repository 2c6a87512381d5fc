#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// The manifest of a training checkpoint: what it is of, where the training stood, and which files
// it consists of. docs/checkpoint_format.md states the format.

namespace sft::engine {

// One file of a checkpoint.
struct CheckpointFile {
  std::string name;  // in the checkpoint's folder
  int rank = 0;      // that wrote it
  int64_t size = 0;
  std::string sha256;
};

// Settings that a resumed job must share with the job that wrote the checkpoint, by dotted key.
using Stamp = std::map<std::string, std::string>;

// A checkpoint's manifest.json. A plain value.
struct Manifest {
  // Version that this program writes, and the latest that it reads.
  static constexpr int kFormat = 1;
  static constexpr std::string_view kFileName = "manifest.json";

  int64_t step = 0;     // optimizer steps taken
  double epoch = 0;     // position in the data, as steps report it
  int64_t samples = 0;  // consumed since the start of the run, over all ranks and epochs
  std::string engine_version;
  int world = 1;  // ranks that wrote it
  std::string sharding;
  std::string reason;  // "steps", "epoch", "time", "asked", "best", "stopping"
  int64_t optimizer_steps = 0;
  // The best validation so far; no value before the first.
  std::optional<double> best_metric;
  int64_t best_step = 0;
  int64_t validations_without_gain = 0;
  std::vector<CheckpointFile> files;
  Stamp stamp;

  // JSON that ends with the hash of the rest of it.
  std::string ToText() const;
};

// Reads dir/manifest.json. Throws InfrastructureError "checkpoint_damaged" where it is missing or
// not as it was written, UserError "checkpoint_newer" for a later format.
Manifest ReadManifest(const std::filesystem::path& dir);

// Throws InfrastructureError "checkpoint_damaged" unless the file is there with its size and hash.
void VerifyFile(const std::filesystem::path& dir, const CheckpointFile& file);

// "step-20", the folder of a checkpoint within that of all of a job.
std::string CheckpointName(int64_t step);
// "rank-1-of-4.safetensors", the rank's first file; "rank-1-of-4-2.safetensors" its second.
std::string ShardName(int rank, int world, size_t index);
// Suffix of the name of a folder that is being written or removed.
inline constexpr std::string_view kPartial = ".partial";

}  // namespace sft::engine
