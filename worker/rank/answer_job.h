#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "worker/channel/flight_record.h"
#include "worker/channel/launch.h"
#include "worker/engine/dist/rendezvous.h"
#include "worker/rank/answer_exchange.h"
#include "worker/rank/answer_part.h"
#include "worker/rank/command_input.h"
#include "worker/rank/device.h"
#include "worker/rank/event_log.h"
#include "worker/rank/launch_file.h"
#include "worker/rank/row_answerer.h"
#include "worker/rank/row_task.h"

namespace sft::rank {

// `sft-rank prepare` of a job that answers prompts: checks model, adapter and options, and encodes
// every prompt, so that what cannot be answered is named before anything is loaded. Throws engine
// errors.
void PrepareAnswers(const Launch& launch, EventLog& events);

// Checks model, adapter and options of a job that answers without computing anything; returns how
// many positions its model was made for (0: it does not say) and for how many tokens it has
// embeddings.
struct CheckedModel {
  int64_t positions = 0, vocabulary = 0;
};
CheckedModel CheckAnswering(const Launch& launch);

// What the job's file says of answering, with the model and the adapter of this node.
AnswerOptions OptionsFor(const Launch& launch);
// Keeps the process within compute.memory_budget_gb of its GPU.
void LimitMemory(const spec::JobSpec& spec, const Device& device);
// Nothing where there is no room for one.
std::optional<channel::FlightRecorder> OpenFlightRecord(const channel::RankLaunch& file, int rank,
                                                        Clock& clock);

// One process of a job that answers prompts or held-out rows (RowTask). It answers its share of the
// rows, in order, into <checkpoint dir>/answers, where a later attempt goes on, and shares nothing
// else with the others of its node: each ends when its rows are done. Those of other nodes send
// their lines to rank 0 (answer_exchange.h). Rank 0 stays until all are there, tells how many there
// are, and delivers the joined file.
class AnswerJob {
 public:
  struct Context {
    const Launch& launch;
    int rank;  // global
    EventLog& events;
    CommandInput& commands;
    Clock& clock;
    MonoTime process_start;
  };
  explicit AnswerJob(const Context& context);

  // Returns kExitOk, or kExitStopped when a command or a signal ended it. Throws engine errors.
  channel::ExitCode Run();

 private:
  bool Stopped();
  void Enter(channel::FlightPhase phase);
  void TellReady(const Device& device);
  // False: it was told to stop.
  bool AnswerShare(AnswerPart& part, const Device& device);
  bool AwaitOthers(AnswerPart& part);
  // Of a job on several nodes, on the ranks that take part: rank 0 and those of other nodes.
  bool MeetNodes(AnswerPart& part);
  // Sends or takes what is new. Now and then.
  void Exchange();
  // Waits until rank 0 has all that was sent; on rank 0, until the others read its store no more.
  bool LeaveNodes();
  bool AwaitNodes(const std::function<bool()>& done);
  // Now and then, on rank 0.
  void TellProgress(bool now);
  void Deliver();

  Context context_;
  std::unique_ptr<RowTask> task_;
  RowShare share_;
  std::string out_;
  AnswerCount count_;
  std::optional<engine::Rendezvous> meeting_;
  std::optional<AnswerReceiver> receiver_;  // one of the two, in a job on several nodes
  std::optional<AnswerSender> sender_;
  bool received_ = true;  // all answers of other nodes are here
  MonoTime exchanged_at_{};
  std::optional<channel::FlightRecorder> flight_;
  // When answering began or was told of last, and what there was then.
  struct Told {
    MonoTime at{};
    AnswerCount::Sums sums;
  };
  Told began_, told_;
  MonoTime looked_at_{};
};

}  // namespace sft::rank
