#include "common/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "common/base/bytes.h"
#include "common/plan/offload_memory.h"
#include "common/plan/pipeline_plan.h"

namespace sft::plan {
namespace {

// Memory beside the allocator: the driver's context, kernels that cuBLAS and cuDNN load when first
// used, and NCCL's buffers.
constexpr int64_t kContextBytes = 550'000'000;
constexpr int64_t kLibraryBytes = 900'000'000;
constexpr int64_t kNcclBytes = 1'300'000'000;
// A split of the job's batch must be faster than the unsplit batch by more than this.
constexpr double kWorthASplit = 0.01;
// Among choices this close to the fastest, the one with the least memory is taken.
constexpr double kSame = 0.002;
constexpr int64_t kLogitsBytes = int64_t{1} << 30;
constexpr int64_t kLeastLogitsBytes = int64_t{64} << 20;
// Recording is worth its padding and memory where launches slow micro-batches down by more than
// this.
constexpr double kWorthRecording = 0.05;
// Memory that the driver keeps beside the allocator for the kernels of recordings; not measured.
constexpr int64_t kRecordingBytes = 500'000'000;
// Tokens of a tile of the feed-forward layer, from the largest. Smaller ones save little.
constexpr int64_t kMlpRows = 16384;
constexpr int64_t kLeastMlpRows = 4096;
// Beyond it the inputs that are made again at a time are as many as those that are saved.
constexpr int64_t kMostInputEvery = 8;
constexpr double kGiga = 1e9;
constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();

// The next smaller tile of the feed-forward layers; 0: there is none. A weight's gradient is one
// product where its sum is in the type that it is sent in, and where it is of FP8 rows.
int64_t SmallerTile(const Problem& p, const ExecutionPlan& run) {
  const bool one_product = p.job.full_finetune() && (p.shards_weights() || p.job.fp8());
  if (run.deep < Recompute::kMlp || one_product || p.shape.layer_input > 0 ||
      p.matrix_ranks() > 1) {
    return 0;
  }
  int64_t rows = run.mlp_rows == 0 ? kMlpRows : run.mlp_rows / 2;
  while (rows >= kLeastMlpRows && rows >= MicroBatchTokens(p, run)) rows /= 2;
  return rows >= kLeastMlpRows ? rows : 0;
}

// Takes the cheapest step that saves memory; false when none is left.
bool Squeeze(const Problem& p, ExecutionPlan* run) {
  if (run->logits_bytes > kLeastLogitsBytes) {
    run->logits_bytes /= 2;
  } else if (const int64_t rows = SmallerTile(p, *run); rows > 0) {
    run->mlp_rows = rows;
  } else if (!run->embedding_on_host && p.may_hold_embedding_on_host()) {
    run->embedding_on_host = true;
  } else if (run->prefetch && p.expands_blocks() && !p.shards_weights()) {
    run->prefetch = false;
  } else {
    return false;
  }
  return true;
}

// The blocks that keep things in host memory, where any do: those that recompute `deep`, but the
// last, whose backward comes at once; of these as many as `host_bytes` hold.
int64_t MostOnHost(const Problem& p, const ExecutionPlan& run, int64_t host_bytes) {
  if (p.matrix_ranks() > 1) return 0;
  const bool all = run.deep == run.shallow;
  ExecutionPlan most = run;
  most.kept_on_host =
      std::min(all ? p.shape.layers : run.deep_layers, run.InputFrom(p.shape.layers - 1));
  int64_t bytes = HostBytes(p);
  for (int64_t layer = 0; layer < most.kept_on_host; ++layer) {
    bytes += HostKept(p, most, layer);
    if (bytes > host_bytes) return layer;
  }
  return most.kept_on_host;
}

int64_t HostLimit(const PlanInput& input) {
  return input.host_bytes == 0 ? kUnbounded : input.host_bytes;
}

// With so many rows a micro-batch, before anything is chosen.
ExecutionPlan FirstRun(const Problem& p, int64_t rows) {
  return {.rows = rows,
          .micro_batches = RankRows(p.job) / rows,
          .most_tokens = p.TokensOf(rows),
          .logits_bytes = kLogitsBytes,
          .optimizer_on_host = p.offloads(),
          .blocks_on_host = p.streams()};
}

// With all that takes memory and saves time, but what it recomputes.
ExecutionPlan WithAllThatSavesTime(const Problem& p, ExecutionPlan run) {
  (p.may_keep_copies() ? run.kept : run.carried) = p.shape.layers;
  run.graphs = MayRecord(p, run);
  return run;
}

struct Candidate {
  ExecutionPlan run;
  PeakMemory memory;
  StepTime time;
};

class Search {
 public:
  Search(const Problem& problem, const PlanInput& input)
      : problem_(problem),
        gpu_(input.gpu),
        limit_(input.memory_bytes),
        host_limit_(HostLimit(input)),
        keeps_on_host_(input.keeps_on_host) {}

  // Adds the candidates that fit with this many rows.
  void Add(int64_t rows) {
    const int64_t layers = problem_.shape.layers;
    const bool all = problem_.job.parallelism.activation_checkpointing;
    for (int deep = 0; deep < kRecomputeLevels; ++deep) {
      for (int shallow = 0; shallow <= deep; ++shallow) {
        const auto most = static_cast<int>(Recompute::kAll);
        if (all && (deep != most || shallow != most)) continue;
        // With one level there is nothing to choose.
        for (int64_t count = shallow == deep ? layers : 1; count <= layers; ++count) {
          ExecutionPlan run = FirstRun(problem_, rows);
          run.deep = static_cast<Recompute>(deep);
          run.shallow = static_cast<Recompute>(shallow);
          run.deep_layers = count;
          Try(run);
          if (run.deep == Recompute::kNothing || !keeps_on_host_) continue;
          run.kept_on_host = MostOnHost(problem_, run, host_limit_);
          if (run.kept_on_host > 0) Try(run);
          if (run.shallow == Recompute::kAll) AddFewInputs(run);
        }
      }
    }
  }

  // The fastest candidate, or one with less memory that is as fast.
  std::optional<Candidate> Best() const {
    if (fitting_.empty()) return std::nullopt;
    const Candidate* best = nullptr;
    for (const Candidate& each : fitting_) {
      if (each.time.total() > fastest_ * (1 + kSame)) continue;
      if (best == nullptr || each.memory.reserved() < best->memory.reserved()) best = &each;
    }
    return *best;
  }

 private:
  // Adds plans that keep the inputs of few blocks.
  void AddFewInputs(ExecutionPlan run) {
    for (run.input_every = 2; run.input_every <= kMostInputEvery; run.input_every *= 2) {
      run.kept_on_host = MostOnHost(problem_, run, host_limit_);
      Try(run);
    }
  }

  bool Fits(const ExecutionPlan& run) const {
    return PredictMemory(problem_, run).reserved() <= limit_;
  }

  // Leaves room for fragments between used memory when a block is recomputed: up to a block's size,
  // on four H200s with a Llama of 70B. Kept copies are not worth a job that runs out of memory.
  bool FitsKept(const ExecutionPlan& run) const {
    const PeakMemory memory = PredictMemory(problem_, run);
    const int64_t pieces = run.shallow == Recompute::kAll ? memory.transients : 0;
    return memory.reserved() + pieces <= limit_;
  }

  // True if no choice could make the run as fast as one that fits.
  bool IsTooSlow(const ExecutionPlan& run) const {
    const StepTime least = PredictTime(problem_, WithAllThatSavesTime(problem_, run), gpu_);
    return least.total() > fastest_ * (1 + kSame);
  }

  void Take(const Candidate& candidate) {
    fitting_.push_back(candidate);
    fastest_ = std::min(fastest_, candidate.time.total());
  }

  void Try(ExecutionPlan run) {
    if (IsTooSlow(run)) return;
    while (!Fits(run)) {
      if (!Squeeze(problem_, &run)) return;
    }
    // Where the peak is not in the head, wide chunks of its logits are free.
    for (int64_t bytes = kLogitsBytes; bytes > run.logits_bytes; bytes /= 2) {
      ExecutionPlan wide = run;
      wide.logits_bytes = bytes;
      if (Fits(wide)) run = wide;
    }
    if (problem_.may_keep_copies()) run.kept = MostKept(run);
    // A block that runs again passes through a slot, and finds itself there in its backward.
    run.carried = run.input_every > 1 ? 0 : MostCarried(problem_, run);
    const Candidate plain = CandidateOf(run);
    Take(plain);
    AddRecorded(plain);
  }

  Candidate CandidateOf(const ExecutionPlan& run) const {
    return {run, PredictMemory(problem_, run), PredictTime(problem_, run, gpu_)};
  }

  // Adds the same candidate with recorded blocks, where that is worth it.
  void AddRecorded(const Candidate& plain) {
    if (!MayRecord(problem_, plain.run)) return;
    ExecutionPlan run = plain.run;
    run.graphs = true;
    const Candidate recorded = CandidateOf(run);
    const double saved = plain.time.total() - recorded.time.total();
    const double blocks = recorded.time.total() - recorded.time.optimizer - recorded.time.launches;
    const bool fits = recorded.memory.reserved() + kRecordingBytes <= limit_;
    if (fits && saved > kWorthRecording * blocks) Take(recorded);
  }

  int64_t MostKept(ExecutionPlan run) const {
    int64_t low = 0, high = problem_.shape.layers;
    while (low < high) {
      run.kept = (low + high + 1) / 2;
      if (FitsKept(run)) {
        low = run.kept;
      } else {
        high = run.kept - 1;
      }
    }
    return low;
  }

  const Problem& problem_;
  const GpuRates& gpu_;
  int64_t limit_, host_limit_;
  bool keeps_on_host_;
  std::vector<Candidate> fitting_;
  double fastest_ = std::numeric_limits<double>::infinity();  // of them
};

// The plan with the least memory of the GPU that takes no more than `host_bytes` of the host's.
ExecutionPlan Smallest(const Problem& p, int64_t host_bytes) {
  ExecutionPlan run{.rows = 1,
                    .micro_batches = RankRows(p.job),
                    .deep = Recompute::kAll,
                    .shallow = Recompute::kAll,
                    .deep_layers = p.shape.layers,
                    .logits_bytes = kLeastLogitsBytes};
  while (Squeeze(p, &run)) {
  }
  const auto bytes = [&] { return PredictMemory(p, run).reserved(); };
  run.kept_on_host = MostOnHost(p, run, host_bytes);
  ExecutionPlan least = run;
  int64_t least_bytes = bytes();
  for (run.input_every = 2; run.input_every <= kMostInputEvery; run.input_every *= 2) {
    run.kept_on_host = MostOnHost(p, run, host_bytes);
    if (bytes() >= least_bytes) continue;
    least = run;
    least_bytes = bytes();
  }
  return least;
}

absl::StatusOr<int64_t> LeastBytesOf(const ModelShape& shape, const spec::JobSpec& job,
                                     int64_t row_tokens, int64_t host_bytes) {
  SFT_ASSIGN_OR_RETURN(const Problem problem, MakeProblem(shape, job, row_tokens));
  return PredictMemory(problem, Smallest(problem, host_bytes)).reserved();
}

// False too for a job that cannot be planned.
bool Fits(const PlanInput& input, const spec::JobSpec& job, int64_t row_tokens) {
  const absl::StatusOr<int64_t> least =
      LeastBytesOf(input.shape, job, row_tokens, HostLimit(input));
  return least.ok() && *least <= input.memory_bytes;
}

// The longest rows that fit, in steps of a hundredth of them; 0: none of 8 tokens.
int64_t LongestRow(const PlanInput& input, const Problem& p) {
  constexpr int64_t kLeast = 8;
  const auto fits = [&](int64_t tokens) { return Fits(input, p.job, tokens); };
  if (!fits(kLeast)) return 0;
  int64_t low = kLeast, high = p.row_tokens;  // which does not
  while (high - low > std::max<int64_t>(1, low / 100)) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  constexpr int64_t kRound = 256;
  return low >= 4 * kRound ? low / kRound * kRound : low;
}

// What a rank's GPU holds beside its allocator's memory.
int64_t BesideAllocator(const spec::JobSpec& job, bool opened) {
  int64_t bytes = kLibraryBytes;
  if (!opened) bytes += kContextBytes + (job.compute.gpu_count > 1 ? kNcclBytes : 0);
  // Communicators of the stages, and of each two neighbours; not measured.
  if (job.parallelism.pipeline_parallel_size > 1) bytes += 2 * kNcclBytes;
  // Communicators of a row and of a column, made after the first.
  const bool hybrid = job.parallelism.sharding == spec::Sharding::kHybridShard;
  if (hybrid) bytes += 2 * kNcclBytes;
  // Those of ranks that share rows, and of ranks that take others; not measured.
  const int context = job.parallelism.context_parallel_size;
  if (context > 1 && context < job.compute.gpu_count) bytes += (hybrid ? 4 : 2) * kNcclBytes;
  if (job.context_nodes() > 1) bytes += 2 * kNcclBytes;  // in a node, and over nodes
  // The same of ranks that share matrices, and one of those of them that have the same heads of
  // keys.
  const int tensor = job.parallelism.tensor_parallel_size;
  if (tensor > 2) bytes += kNcclBytes;
  if (tensor > 1 && tensor < job.compute.gpu_count) bytes += (hybrid ? 4 : 2) * kNcclBytes;
  return bytes;
}

// Changes of the job that fit, each by itself, for the error message.
std::string Remedies(const PlanInput& input, const Problem& p, int64_t least) {
  std::vector<std::string> remedies;
  if (const int64_t tokens = LongestRow(input, p) / (p.job.pairs() ? 2 : 1); tokens > 0) {
    remedies.push_back(fmt::format("sequence_length = {}", tokens));
  }
  const auto try_job = [&](spec::JobSpec job, std::string words) {
    if (Fits(input, job, p.row_tokens)) remedies.push_back(std::move(words));
  };
  spec::JobSpec job = p.job;
  if (p.job.qlora() && p.job.quantization.bits != 4) {
    job.quantization.bits = 4;
    try_job(job, "quantization.bits = 4");
  } else if (!p.job.qlora()) {
    job.training.mode = spec::Mode::kLora;
    job.training.use_qlora = true;
    job.quantization.bits = 4;
    try_job(job,
            p.job.full_finetune() ? "mode = \"lora\" with use_qlora = true" : "use_qlora = true");
  }
  for (int more = 1; more <= 8; more *= 2) {
    job = p.job;
    job.parallelism.sharding = spec::Sharding::kFullShard;
    job.compute.gpu_count *= more;
    const bool full = p.job.parallelism.sharding == spec::Sharding::kFullShard;
    if (job.compute.gpu_count == 1 || (more == 1 && full)) continue;
    if (!Fits(input, job, p.row_tokens)) continue;
    remedies.push_back(more == 1
                           ? "fsdp = true"
                           : fmt::format("gpu_count = {} with fsdp = true", job.compute.gpu_count));
    break;
  }
  // Offloading does not go with matrices that are shared (common/spec/splits.cc).
  const bool may_offload = p.matrix_ranks() == 1;
  if (may_offload && !p.job.parallelism.offload_optimizer) {
    job = p.job;
    job.parallelism.offload_optimizer = true;
    try_job(job, "offload_optimizer = true, where the node has the memory");
  }
  if (may_offload && !p.job.parallelism.offload_param &&
      (!p.job.full_finetune() || !p.shares_whole_weights())) {
    job = p.job;
    job.parallelism.offload_param = true;
    job.parallelism.offload_optimizer |= job.full_finetune();
    try_job(job, job.full_finetune()
                     ? "offload_optimizer and offload_param = true, where the node has the memory"
                     : "offload_param = true, where the node has the memory");
  }
  const double budget = p.job.compute.memory_budget_gb;
  if (budget > 0) {
    remedies.push_back(fmt::format("memory_budget_gb = {:.1f}, where the GPU has as much",
                                   static_cast<double>(least) / kGiga + 0.05));
  }
  // With as much host memory as it takes for what blocks keep.
  const ExecutionPlan roomy = Smallest(p, kUnbounded);
  if (const PeakMemory memory = PredictMemory(p, roomy);
      least > memory.reserved() && memory.reserved() <= input.memory_bytes) {
    remedies.push_back(
        fmt::format("{} of host memory free for each rank",
                    BytesText(FreeHostBytes(memory.host + memory.host_activations))));
  }
  if (remedies.empty()) return "GPUs with more memory";
  std::string text;
  for (const std::string& remedy : remedies) {
    text += fmt::format("{}{}", text.empty() ? "" : "; or ", remedy);
  }
  return text;
}

absl::Status Refusal(const PlanInput& input, const Problem& p) {
  const PeakMemory least = PredictMemory(p, Smallest(p, HostLimit(input)));
  std::vector<MemoryItem> items = Items(least);
  std::stable_sort(items.begin(), items.end(),
                   [](const MemoryItem& a, const MemoryItem& b) { return a.bytes > b.bytes; });
  std::string parts;
  for (size_t i = 0; i < std::min<size_t>(3, items.size()); ++i) {
    parts +=
        fmt::format("{}{} {}", i == 0 ? "" : ", ", items[i].category, BytesText(items[i].bytes));
  }
  const double budget = p.job.compute.memory_budget_gb;
  const bool bound = budget > 0 && input.memory_bytes >= static_cast<int64_t>(budget * kGiga);
  return ResourceExhausted(fmt::format(
      "the job does not fit: with one row a micro-batch and everything recomputed it needs {} on "
      "each GPU, {} {} ({}). What would fit: {}",
      BytesText(least.reserved()), bound ? "compute.memory_budget_gb allows" : "a GPU has",
      BytesText(input.memory_bytes), parts, Remedies(input, p, least.reserved())));
}

}  // namespace

int64_t AllocatorBytes(const spec::JobSpec& job, int64_t free_bytes, bool opened) {
  int64_t bytes = free_bytes - BesideAllocator(job, opened);
  const auto budget = static_cast<int64_t>(job.compute.memory_budget_gb * kGiga);
  if (budget > 0) bytes = std::min(bytes, budget);
  return std::max<int64_t>(bytes, 0);
}

int64_t RowTokensOf(const spec::JobSpec& job) {
  return int64_t{job.hyperparameters.sequence_length} * (job.pairs() ? 2 : 1);
}

int64_t GpuBytes(const spec::JobSpec& job, int64_t allocator_bytes) {
  return allocator_bytes + BesideAllocator(job, /*opened=*/false);
}

absl::StatusOr<int64_t> LeastBytes(const ModelShape& shape, const spec::JobSpec& job) {
  return LeastBytesOf(shape, job, RowTokensOf(job), kUnbounded);
}

absl::StatusOr<Plan> MakePlan(const PlanInput& input) {
  const int64_t row_tokens = input.row_tokens > 0 ? input.row_tokens : RowTokensOf(input.job);
  SFT_ASSIGN_OR_RETURN(const Problem problem, MakeProblem(input.shape, input.job, row_tokens));
  if (input.job.parallelism.pipeline_parallel_size > 1) return PlanPipeline(problem, input);
  SFT_RETURN_IF_ERROR(CheckHostMemory(input, problem));
  const int64_t least = PredictMemory(problem, Smallest(problem, HostLimit(input))).reserved();
  if (least > input.memory_bytes) return Refusal(input, problem);
  Search search(problem, input);
  std::optional<Candidate> unsplit;
  const int64_t given = input.job.hyperparameters.per_device_batch;
  for (const int64_t rows : RowOptions(problem)) {
    search.Add(rows);
    if (rows == given) unsplit = search.Best();  // the first option
  }
  std::optional<Candidate> best = search.Best();
  if (!best) return Refusal(input, problem);
  if (unsplit && unsplit->time.total() <= best->time.total() * (1 + kWorthASplit)) best = unsplit;
  Plan plan{best->run, best->memory, best->time};
  const double tokens = static_cast<double>(RankRows(input.job) * input.job.data_ranks()) *
                        static_cast<double>(row_tokens);
  plan.tokens_per_second = tokens / plan.time.total();
  return plan;
}

absl::StatusOr<double> LeastSeconds(const PlanInput& input) {
  const int64_t row_tokens = input.row_tokens > 0 ? input.row_tokens : RowTokensOf(input.job);
  SFT_ASSIGN_OR_RETURN(const Problem problem, MakeProblem(input.shape, input.job, row_tokens));
  if (input.job.parallelism.pipeline_parallel_size > 1) return 0;
  const Recompute level =
      input.job.parallelism.activation_checkpointing ? Recompute::kAll : Recompute::kNothing;
  double least = std::numeric_limits<double>::infinity();
  for (const int64_t rows : RowOptions(problem)) {
    ExecutionPlan run = FirstRun(problem, rows);
    run.deep = run.shallow = level;
    run.deep_layers = problem.shape.layers;
    least = std::min(least,
                     PredictTime(problem, WithAllThatSavesTime(problem, run), input.gpu).total());
  }
  return least;
}

bool FitsAtLeast(const PlanInput& input) {
  const int64_t row_tokens = input.row_tokens > 0 ? input.row_tokens : RowTokensOf(input.job);
  const int64_t host_bytes = input.keeps_on_host ? HostLimit(input) : 0;
  const absl::StatusOr<int64_t> least =
      LeastBytesOf(input.shape, input.job, row_tokens, host_bytes);
  return least.ok() && *least <= input.memory_bytes;
}

std::vector<spec::JobSpec> PrecisionsOf(const spec::JobSpec& job) {
  using spec::MasterWeights;
  using spec::Optimizer;
  const auto& asked = job.hyperparameters;
  const std::pair<Optimizer, MasterWeights> most_precise_first[] = {
      {Optimizer::kAdamW, MasterWeights::kFp32},     {Optimizer::kAdamWBf16, MasterWeights::kFp32},
      {Optimizer::kAdamW, MasterWeights::kBf16},     {Optimizer::kAdamWBf16, MasterWeights::kBf16},
      {Optimizer::kAdamW8bit, MasterWeights::kFp32}, {Optimizer::kAdamW8bit, MasterWeights::kBf16}};
  std::vector<spec::JobSpec> jobs;
  for (const auto& [optimizer, master] : most_precise_first) {
    if (asked.optimizer != Optimizer::kAuto && asked.optimizer != optimizer) continue;
    if (asked.master_weights != MasterWeights::kAuto && asked.master_weights != master) continue;
    spec::JobSpec candidate = job;
    candidate.hyperparameters.optimizer = optimizer;
    if (master == MasterWeights::kBf16) candidate.hyperparameters.master_weights = master;
    jobs.push_back(std::move(candidate));
  }
  return jobs;
}

spec::JobSpec WithPrecision(const PlanInput& input) {
  std::vector<PlanInput> candidates;
  for (spec::JobSpec& job : PrecisionsOf(input.job)) {
    candidates.push_back(input);
    candidates.back().job = std::move(job);
  }
  // Where the host's memory is not known, plans without it decide first.
  for (const bool keeps_on_host : {false, true}) {
    if (!keeps_on_host && input.host_bytes > 0) continue;
    for (PlanInput& candidate : candidates) {
      candidate.keeps_on_host = keeps_on_host;
      if (MakePlan(candidate).ok()) return candidate.job;
    }
  }
  return candidates.front().job;
}

std::string Describe(const Plan& plan, const spec::JobSpec& job, int64_t layers) {
  const ExecutionPlan& c = plan.execution;
  std::string text = fmt::format("{} row{} x {} micro-batch{}", c.rows, c.rows == 1 ? "" : "s",
                                 c.micro_batches, c.micro_batches == 1 ? "" : "es");
  const auto add = [&](Recompute level, int64_t count) {
    if (count == 0) return;
    text +=
        fmt::format(", {} recomputed in {} layer{}", NameOf(level), count, count == 1 ? "" : "s");
  };
  if (c.deep == c.shallow) {
    add(c.deep, layers);
  } else {
    add(c.deep, c.deep_layers);
    add(c.shallow, layers - c.deep_layers);
  }
  if (ExpandsBlocks(job, Device::kGpu)) {
    text += fmt::format(", {}{} kept, {} carried", c.kept,
                        fmt::format(" {}cop{}",
                                    job.qlora()                     ? "de-quantised "
                                    : job.parallelism.offload_param ? ""
                                                                    : "gathered ",
                                    c.kept == 1 ? "y" : "ies"),
                        c.carried);
  }
  if (c.mlp_rows > 0) {
    text += fmt::format(", feed-forward layers in tiles of {} tokens", c.mlp_rows);
  }
  if (c.input_every > 1) text += fmt::format(", one layer in {} keeps its input", c.input_every);
  if (c.kept_on_host > 0) {
    int64_t count = 0;
    for (int64_t layer = 0; layer < layers; ++layer) count += c.BlockOf(layer, layers).on_host;
    text += fmt::format(", activations of {} layer{} in {} of host memory", count,
                        count == 1 ? "" : "s", BytesText(plan.memory.host_activations));
  }
  if (job.fp8_copies()) text += fmt::format(", FP8 copies of {} layers kept", c.kept);
  if (c.embedding_on_host) text += ", embedding in host memory";
  if (!c.prefetch) text += ", no prefetch";
  if (c.graphs) text += ", graphs";
  if (plan.time.exchange > 0) {
    text += fmt::format(", {:.0f} % of a step between the {} GPUs that share matrices",
                        100 * plan.time.exchange / plan.time.total(),
                        job.parallelism.tensor_parallel_size);
  }
  if (c.stages.stages > 1) text += ", " + DescribeStages(c.stages, WithBatch(job, c));
  if (plan.memory.host > 0) {
    const auto& p = job.parallelism;
    text += fmt::format(", {}{}{} in {} of host memory", p.offload_param ? "weights" : "",
                        p.offload_param && p.offload_optimizer ? " and " : "",
                        p.offload_optimizer ? "optimizer" : "", BytesText(plan.memory.host));
  }
  return text;
}

}  // namespace sft::plan
