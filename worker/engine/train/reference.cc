#include "worker/engine/train/reference.h"

#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "common/io/file.h"
#include "common/io/sha256.h"
#include "worker/engine/base/error.h"
#include "worker/engine/train/preference_loss.h"

namespace sft::engine {
namespace {

// The file: this, the key, the values as doubles, the SHA-256 of all before it.
constexpr std::string_view kMagic = "SFTREFERENCE1 ";
constexpr size_t kDigestBytes = sizeof(io::Sha256::Digest);

std::string FileText(const std::string& key, const std::vector<double>& values) {
  std::string text = std::string(kMagic) + key;
  text.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double));
  io::Sha256 hash;
  hash.Update(text);
  const io::Sha256::Digest digest = hash.Finish();
  text.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  return text;
}

// Nothing where there is no whole file of this key.
std::optional<std::vector<double>> ReadValues(const ReferenceJob& job) {
  if (job.file.empty()) return std::nullopt;
  const size_t head = kMagic.size() + job.key.size();
  const size_t size = head + static_cast<size_t>(job.rows->size()) * sizeof(double) + kDigestBytes;
  const auto text = io::ReadFile(job.file.string());
  if (!text.ok() || text->size() != size) return std::nullopt;
  std::vector<double> values(static_cast<size_t>(job.rows->size()));
  std::memcpy(values.data(), text->data() + head, values.size() * sizeof(double));
  if (FileText(job.key, values) != *text) return std::nullopt;
  // sft-worker removes what was not used for long: the time of change is that of the last use.
  (void)utimensat(AT_FDCWD, job.file.c_str(), nullptr, 0);
  return values;
}

// Each row once, whatever the weights of its file.
std::shared_ptr<const Dataset> Unweighted(const std::shared_ptr<const Dataset>& rows) {
  if (rows->parts().empty()) return rows;
  std::vector<Dataset::Part> parts = rows->parts();
  for (Dataset::Part& part : parts) part.weight = 1;
  return Dataset::Join(std::move(parts));
}

std::vector<double> ComputeLogps(const ReferenceJob& job, TrainingModel& model, Communicator& comm,
                                 TrainObserver& observer) {
  StepPlanOptions options = StepPlanOptions::FromSpec(job.spec);
  options.only = job.reached;
  const StepPlan plan = StepPlan::ForValidation(Unweighted(job.rows), options, job.longest_trained);
  const Step step = plan.GetStep(0);
  std::vector<double> values(static_cast<size_t>(job.rows->size()), 0.0);
  for (int micro = 0; micro < step.micro_batches; ++micro) {
    observer.OnPhase(TrainPhase::kValidation, 0);
    observer.OnProgress("reference", micro, step.micro_batches);
    if (observer.StopRequested()) {
      throw InfrastructureError("stopped before the reference was known; it is computed again");
    }
    MicroBatch batch = plan.GetMicroBatch(step, micro, comm.rank());
    if (job.change) batch = job.change(batch);
    const at::Tensor losses = model.RowLosses(batch);
    if (batch.empty()) continue;
    const at::Tensor logps = AnswerLogps(batch, losses).cpu();
    for (size_t i = 0; i < batch.rows.size(); ++i) {
      values[batch.rows[i]] = logps.const_data_ptr<double>()[i];
    }
  }
  // Each document is some rank's; the others have added zero.
  const at::Tensor host =
      at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kDouble);
  at::Tensor all = host.to(comm.device(), at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  comm.AllReduceSum(all);
  host.copy_(all);
  return values;
}

}  // namespace

std::vector<double> ReferenceLogps(const ReferenceJob& job, TrainingModel& model,
                                   Communicator& comm, TrainObserver& observer) {
  const std::optional<std::vector<double>> known = ReadValues(job);
  const bool all_know = AllReduceSumDouble(comm, known ? 1.0 : 0.0) == comm.world();
  const auto say = [&](std::string_view how) {
    if (comm.rank() != 0) return;
    observer.OnMessage(fmt::format(
        "log-probabilities of {} answers under the reference, the model before "
        "training: {}",
        job.reached.empty() ? job.rows->size() : std::ranges::count(job.reached, 1), how));
  };
  if (all_know) {
    say("as computed before");
    return *known;
  }
  say("one pass over the rows");
  std::vector<double> values = ComputeLogps(job, model, comm, observer);
  if (job.file.empty() || !job.writes) return values;
  // Without the file they are computed again after a restart: no reason to end the job.
  if (const absl::Status status = io::WriteFileAtomic(job.file.string(), FileText(job.key, values));
      !status.ok()) {
    observer.OnMessage(fmt::format("the reference is not kept: {}", Message(status)));
  }
  return values;
}

}  // namespace sft::engine
