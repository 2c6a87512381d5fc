#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/io/file.h"
#include "worker/channel/flight_record.h"
#include "worker/channel/launch.h"
#include "worker/engine/data/chat_tokenizer.h"
#include "worker/engine/generate/batch_generator.h"
#include "worker/engine/generate/generator.h"
#include "worker/rank/command_input.h"
#include "worker/rank/event_log.h"
#include "worker/rank/launch_file.h"
#include "worker/rank/row_answerer.h"
#include "worker/rank/serve_answer.h"
#include "worker/rank/serve_question.h"

namespace sft::rank {

// A process of a job of kind "serve": holds a model and answers whoever asks on its Unix socket
// (channel::RankLaunch::serve_socket), all questions under way together. A question is one line of
// JSON (ServeQuestion). The answer is lines: {"text": what comes next}, and at the end
// {"finish_reason", "prompt_tokens", "answer_tokens"}, with "error" where there is one; where
// several prompts are asked, each line has its answer's number as "index" (ServeAnswer). While
// there is nothing new, an empty text is sent every few seconds. Who closes the connection no
// longer wants the answer. The processes of a job know nothing of each other: each gives the same
// answer to a question. One that is told to stop ends the answers under way, unless it is killed
// before; the server sends it no new questions by then.
class ServeJob {
 public:
  struct Context {
    const Launch& launch;
    int rank = 0;
    EventLog& events;
    CommandInput& commands;
    Clock& clock;
    MonoTime process_start;
  };
  explicit ServeJob(const Context& context) : context_(context) {}

  // Runs until it is told to stop. Throws engine errors.
  channel::ExitCode Run();

 private:
  // Somebody who asks.
  struct Asker {
    io::UniqueFd fd;
    std::string read;       // of the question
    std::string unsent;     // of the answer
    bool asked = false;     // the question is whole
    bool finished = false;  // all of the answers are in `unsent`
    bool gone = false;
    ServeQuestion question;
    std::list<ServeAnswer> answers;  // that are not finished
    // Those of them that wait for their turn, and what the batch will be asked.
    struct Waiting {
      std::list<ServeAnswer>::iterator answer;
      engine::GenerationRequest request;
    };
    std::deque<Waiting> waiting;
    MonoTime told{};
  };
  // An answer that the batch makes.
  struct Request {
    Asker* asker;
    std::list<ServeAnswer>::iterator answer;
  };

  bool Stopped();
  void Load();
  void MakeBatch(const Device& device);
  std::string SocketPath() const;
  io::UniqueFd Listen() const;
  // Takes what has come, and waits for more where there is nothing else to do.
  void Receive(int listener);
  // Ends the answers under way, and those that a process on another node leaves.
  void Drain(int listener);
  void Read(Asker& asker);
  void TakeBytes(Asker& asker, std::string_view bytes);
  void Begin(Asker& asker);
  void MakeRequests(Asker& asker);
  // Tokens of the longest answer to a prompt of so many. Throws UserError where `wanted` are none
  // of them.
  int64_t MostNewTokens(int64_t prompt, int64_t wanted) const;
  // Gives the batch what it has room for, one request of each asker in turn and three quarters of
  // the room to one, so that who asks for many answers keeps nobody else waiting for all of them.
  void Feed();
  void Finish(const engine::GenerationAnswer& made);
  void Fail(Asker& asker, const std::string& error);
  // Nobody wants what is still to be made.
  void Drop(Asker& asker);
  void Send(Asker& asker);
  void Step();

  Context context_;
  AnswerOptions options_;
  std::optional<channel::FlightRecorder> flight_;
  std::optional<engine::ChatTokenizer> tokenizer_;
  std::optional<engine::Generator> generator_;
  std::unique_ptr<engine::BatchGenerator> batch_;
  int64_t longest_ = 0;  // conversation that each question has room for, in tokens
  std::list<Asker> askers_;
  std::map<int64_t, Request> requests_;  // by number in the batch
};

}  // namespace sft::rank
