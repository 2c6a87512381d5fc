#include "worker/rank/planning.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "common/base/status.h"
#include "common/io/file.h"
#include "common/io/host_memory.h"
#include "common/plan/offload_memory.h"
#include "common/spec/visit.h"
#include "worker/engine/base/error.h"
#include "worker/engine/model/config.h"

namespace sft::rank {
namespace {

template <typename T>
T Unwrap(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  const std::string message(Message(value.status()));
  if (absl::IsResourceExhausted(value.status())) throw engine::UserError(message, "no_fit");
  throw engine::UserError(message, "bad_model");
}

// `together`: documents of a row; two of a pair.
int64_t LongestRow(const engine::Dataset& rows, int64_t together) {
  int64_t longest = 1;
  for (int64_t row = 0; row < rows.size(); row += together) {
    int64_t tokens = 0;
    for (int64_t i = row; i < std::min(row + together, rows.size()); ++i) tokens += rows.Length(i);
    longest = std::max(longest, tokens);
  }
  return longest;
}

// cuBLAS scales FP8 rows one by one on Hopper alone.
void CheckProducts(const spec::JobSpec& spec, const Device& device) {
  constexpr int kHopper = 9;
  if (!spec.fp8()) return;
  const auto properties = device.cuda->devices->Properties(device.torch.index());
  if (properties.compute_major == kHopper) return;
  throw engine::UserError(
      fmt::format(
          "training.matmul = \"{}\" needs a Hopper GPU (H100, H200); this is {}, of compute "
          "capability {}.{}. Use \"bf16\"",
          spec::EnumName(spec.training.matmul), device.Name(), properties.compute_major,
          properties.compute_minor),
      "no_fp8");
}

// The kernel of experts in FP8 writes bf16.
void CheckExpertProducts(const spec::JobSpec& spec, const plan::ModelShape& shape) {
  const bool bf16 = plan::ComputeTypeOf(spec, plan::Device::kGpu) == spec::ComputeType::kBf16;
  if (!spec.fp8() || bf16 || !shape.HasExperts()) return;
  throw engine::UserError(
      "training.matmul = \"fp8\" of a model with experts needs activations in bf16, and this job's "
      "are in fp32. Set hyperparameters.parallelism.bf16 = true, or matmul = \"bf16\"",
      "no_fp8");
}

// Free on this GPU, what its allocator holds included.
int64_t FreeBytes(const Device& device) {
  const int index = device.torch.index();
  return device.cuda->devices->DriverMemory(index).free +
         device.cuda->devices->Memory(index).reserved;
}

// GPUs of this node, those of other jobs among them, as far as this process sees their files.
int64_t GpusOfNode() {
  int64_t count = 0;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator("/dev", error)) {
    const std::string name = file.path().filename();
    constexpr std::string_view kPrefix = "nvidia";
    count += name.size() > kPrefix.size() && name.starts_with(kPrefix) &&
             std::all_of(name.begin() + kPrefix.size(), name.end(),
                         [](unsigned char c) { return std::isdigit(c) != 0; });
  }
  return count;
}

// Host memory for what each rank keeps there: the least of any node. What the job says is to be
// there may take all that is free; what the plan may do without takes a GPU's share of it, since
// another job may start beside it.
int64_t HostBytes(const Launch& launch, engine::Communicator& comm) {
  const auto& p = launch.spec.parallelism;
  const bool asked = p.offload_optimizer || p.offload_param;
  const auto available = io::AvailableMemory();
  if (asked && !available.ok()) Unwrap(available);
  const int64_t parts =
      asked ? launch.file.local_ranks : std::max<int64_t>(launch.file.local_ranks, GpusOfNode());
  const int64_t own = available.ok() ? plan::HostBytesOfRank(*available, parts) : 1;
  const std::vector<int64_t> all = engine::AllGatherInt64(comm, own);
  return *std::min_element(all.begin(), all.end());
}

// One plan for all ranks, whose GPUs may have other names for one type: by the slowest of them.
const plan::GpuRates& SlowestGpu(const Device& device, engine::Communicator& comm) {
  const auto known = plan::KnownGpus();
  const int64_t own = &plan::NearestGpu(device.Name()) - known.data();
  const std::vector<int64_t> all = engine::AllGatherInt64(comm, own);
  return known[*std::min_element(
      all.begin(), all.end(), [&](int64_t a, int64_t b) { return known[a].copy < known[b].copy; })];
}

}  // namespace

std::optional<RankPlan> PlanRank(const Launch& launch, const Device& device,
                                 const engine::Dataset& rows, engine::Communicator& comm) {
  if (device.cuda == nullptr) return std::nullopt;
  const spec::JobSpec& spec = launch.spec;
  CheckProducts(spec, device);
  const std::vector<int64_t> free = engine::AllGatherInt64(comm, FreeBytes(device));
  RankPlan result;
  plan::PlanInput input;
  input.shape = engine::ReadConfig(launch.file.model_dir);
  CheckExpertProducts(spec, input.shape);
  input.job = spec;
  input.gpu = SlowestGpu(device, comm);
  const plan::GpuRates* known = plan::FindGpu(device.Name());
  result.rates_known = known != nullptr && known->measured;
  input.memory_bytes = plan::AllocatorBytes(spec, *std::min_element(free.begin(), free.end()),
                                            /*opened=*/true);
  input.row_tokens = spec.data.packing ? 0 : LongestRow(rows, spec.pairs() ? 2 : 1);
  result.memory_bytes = input.memory_bytes;
  input.host_bytes = HostBytes(launch, comm);
  result.plan = Unwrap(plan::MakePlan(input));
  result.shape = input.shape;
  result.row_tokens = input.row_tokens > 0 ? input.row_tokens : plan::RowTokensOf(spec);
  result.description = plan::Describe(result.plan, spec, input.shape.layers);
  device.cuda->devices->LimitMemory(device.torch.index(), result.memory_bytes);
  return result;
}

void Apply(const std::optional<RankPlan>& plan, engine::TrainerOptions& options) {
  options.execution =
      plan ? plan->plan.execution : plan::Unplanned(options.spec, plan::Device::kCpu);
  options.spec = plan::WithBatch(options.spec, *options.execution);
}

}  // namespace sft::rank
