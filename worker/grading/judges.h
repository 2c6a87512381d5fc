#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/spec/grader.h"
#include "worker/grading/verdict.h"

// Language models that grade answers. This process calls none of them and knows none of their keys:
// it hands a question to the node's worker on a Unix socket, the worker to the server, and that
// asks the judge that the job names.
//
// A question is a line {"grader": name, "prompt": text}, one for each connection; the answer is a
// line {"text": reply}, or {"error": why, "again": may another call succeed, "away": the judge was
// not asked, "busy": because as many questions as may be are under way, not because the server or
// the worker could not be reached, "after": seconds}.

namespace sft::grading {

// What the worker says of one question.
struct JudgeReply {
  std::string text, error;
  bool again = false, away = false, busy = false;
  double after_seconds = 0;
};
JudgeReply ParseJudgeReply(std::string_view line);

// Reads the score out of a reply, as the grader says where it stands.
Verdict ReadReply(const spec::Grader& grader, const std::string& reply);

// One judge of a job. Thread-safe.
class Judge {
 public:
  // Asks once; blocks until there is an answer.
  using Ask = std::function<JudgeReply(const spec::Grader& grader, const std::string& prompt)>;
  // Questions in a row without a reply after which no more are asked.
  static constexpr int kGiveUpAfter = 20;
  // How long a question waits for a worker or a server that is away; for one that is busy it waits
  // as long as it takes.
  static constexpr Nanos kAway = std::chrono::minutes(10);

  Judge(spec::Grader grader, Ask ask, Clock& clock)
      : grader_(std::move(grader)), ask_(std::move(ask)), clock_(clock) {}

  // Asks what the judge thinks of an answer, again after a call without a reply as often as the
  // job says, with growing waits or the one that the judge asks for. ABORTED where `stop` was set.
  Verdict Grade(const Sample& sample, const std::atomic<bool>& stop);

 private:
  JudgeReply Reply(const std::string& prompt, const std::atomic<bool>& stop);
  // False where `stop` was set meanwhile.
  bool Wait(double seconds, const std::atomic<bool>& stop);

  const spec::Grader grader_;
  const Ask ask_;
  Clock& clock_;
  Mutex mutex_;
  int silent_ SFT_GUARDED_BY(mutex_) = 0;  // questions in a row that got no reply
  std::string last_error_ SFT_GUARDED_BY(mutex_);
};

// Asks the worker that listens on this socket. `stop`, which ends a wait, is borrowed.
Judge::Ask AskWorkerOn(const std::string& socket, const std::atomic<bool>& stop);

}  // namespace sft::grading
