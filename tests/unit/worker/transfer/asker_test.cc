#include "worker/transfer/asker.h"

#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <latch>
#include <list>
#include <thread>

#include "tests/unit/worker/base/test_node.h"
#include "tests/unit/worker/transfer/fake_server.h"

namespace sft::worker {
namespace {

using ::testing::HasSubstr;

constexpr char kUid[] = "attempt-bcdfghjkmn";

constexpr int kHangMs = 30'000;

// Takes lines of several answers at once.
class ManyLines : public FakeServer {
 public:
  absl::Status SendLines(const std::string& request, const NextLine& next) override {
    std::string all;
    absl::StatusOr<std::string> line = next();
    for (; line.ok() && !line->empty(); line = next()) all += *line;
    const MutexLock lock(mutex_);
    lines[request] = all + std::string(Message(line.status()));
    return absl::OkStatus();
  }

 private:
  Mutex mutex_;
};

class AskerTest : public TestNode {
 protected:
  ~AskerTest() override {
    for (Process& process : processes_) process.thread.join();
  }

  struct Process {
    io::UniqueFd listener;
    std::string question;
    std::thread thread;
  };
  // A process in its place listens.
  Process& Listen(int place) {
    EXPECT_TRUE(io::MakeDirs(setup_.data_dir + "/run").ok());
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = setup_.ServeSockets(kUid) + std::to_string(place);
    EXPECT_LT(path.size(), sizeof(address.sun_path));
    memcpy(address.sun_path, path.data(), path.size());
    Process& process = processes_.emplace_back();
    process.listener = io::UniqueFd(socket(AF_UNIX, SOCK_STREAM, 0));
    const int listener = process.listener.get();
    EXPECT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener, 1), 0);
    return process;
  }
  // It takes one question, and answers once all have one.
  void Serve(const std::string& answer, int place = 0, int of = 1) {
    Process& process = Listen(place);
    if (all_asked_ == nullptr) all_asked_ = std::make_unique<std::latch>(of);
    process.thread = std::thread([this, &process, answer] {
      pollfd entry{process.listener.get(), POLLIN, 0};
      const bool asked = poll(&entry, 1, kHangMs) == 1;
      EXPECT_TRUE(asked) << "nobody asks";
      const io::UniqueFd fd(asked ? accept(entry.fd, nullptr, nullptr) : -1);
      process.listener = io::UniqueFd();
      char letter = 0;
      while (recv(fd.get(), &letter, 1, 0) == 1 && letter != '\n') process.question += letter;
      all_asked_->arrive_and_wait();
      if (asked) send(fd.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
    });
  }
  // Of a process that was killed, its socket stays.
  void Die(int place) {
    Process& process = Listen(place);
    process.listener = io::UniqueFd();
    process.thread = std::thread([] {});
  }
  static v1::Ask QuestionTo(const std::string& uid, const std::string& request) {
    v1::Ask ask;
    ask.set_request(request);
    ask.set_attempt_uid(uid);
    ask.set_question("{\"prompt\":\"a\"}");
    return ask;
  }
  // What the server got.
  std::string Ask(const std::string& uid) {
    Asker(setup_, server_).Ask(QuestionTo(uid, "fetch-1"));
    return server_.lines["fetch-1"];
  }

  ManyLines server_;
  std::unique_ptr<std::latch> all_asked_;
  std::list<Process> processes_;
};

TEST_F(AskerTest, TheQuestionIsPassedOnAndTheAnswersLinesComeBack) {
  Serve("{\"text\":\"b\"}\n{\"finish_reason\":\"stop\"}\n");
  EXPECT_EQ(Ask(kUid), "{\"text\":\"b\"}\n{\"finish_reason\":\"stop\"}\n");
  EXPECT_EQ(processes_.front().question, "{\"prompt\":\"a\"}");
}

TEST_F(AskerTest, AnEndBeforeTheFirstLineIsSaid) {
  Serve("");
  EXPECT_THAT(Ask(kUid), HasSubstr("ended before its answer"));
}

TEST_F(AskerTest, QuestionsAreSpreadOverTheProcessesOfAnAttempt) {
  Serve("of one\n", 0, 2);
  Serve("of the other\n", 1);
  {
    Asker asker(setup_, server_);
    asker.Ask(QuestionTo(kUid, "fetch-1"));
    asker.Ask(QuestionTo(kUid, "fetch-2"));
  }
  EXPECT_THAT((std::vector{server_.lines["fetch-1"], server_.lines["fetch-2"]}),
              ::testing::UnorderedElementsAre("of one\n", "of the other\n"));
}

TEST_F(AskerTest, WhereOneProcessDoesNotListenAnotherIsAsked) {
  Die(0);
  Serve("of the other\n", 1);
  EXPECT_EQ(Ask(kUid), "of the other\n");
}

TEST_F(AskerTest, AProcessThatIsNotThereYetAndANameThatIsNoneAreSaid) {
  EXPECT_THAT(Ask(kUid), HasSubstr("not loaded yet"));
  server_.lines.clear();
  EXPECT_THAT(Ask("../../etc"), HasSubstr("no attempt"));
}

}  // namespace
}  // namespace sft::worker
