#pragma once

#include <string>

#include "client/output/console.h"
#include "sft/v1/job.pb.h"

namespace sft::client {

// Shows a job's progress. On a terminal it redraws one line with a bar, loss and speed; elsewhere
// it prints a plain line per change of state and per training step. Writes to the console's err.
class ProgressView {
 public:
  explicit ProgressView(Console console) : console_(console) {}

  void OnJob(const v1::Job& job);
  void OnMetric(const v1::Metric& metric);
  // Ends the redrawn line; call before printing anything else.
  void Finish();

 private:
  void PrintLine(const std::string& line);

  Console console_;
  std::string last_state_line_;
  bool drawn_ = false;
  int64_t total_steps_ = 0;
  v1::Job::Kind kind_ = v1::Job::SFT;
};

// "60.10 GB (rank 2) to 62.30 GB (rank 5) of each of 8 ranks"; empty for less than two.
std::string RanksText(const v1::Progress& progress);
// "shard 12.5% of the step waited for, 41.5 GB/s; ..." of each axis; empty for one rank.
std::string TrafficText(const v1::Progress& progress);
// "place 3 in line, start 2026-..., end 2026-..."; empty if nothing is known.
std::string OutlookText(const v1::Outlook& outlook);

// How much larger the reward of chosen answers is.
// "  val.rouge_l 34.10  val.exact_match 12.00"; of the first so many bytes, whole values only.
std::string ValuesText(const google::protobuf::RepeatedPtrField<v1::NamedValue>& values,
                       size_t most = std::string::npos);

double MarginOf(const v1::Preference& preference);

// "[=====>    ] 12/40  loss 1.234  val 1.100  850 tok/s  1.20 GB  eta 1m20s", cut to `width`; of a
// job that answers prompts "12/40 answers  850 tok/s  eta 1m20s".
std::string ProgressLine(const v1::Progress& progress, v1::Job::Kind kind, int width);

}  // namespace sft::client
