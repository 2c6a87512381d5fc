#include "worker/transfer/judge_desk.h"

#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>

#include "tests/unit/worker/base/test_node.h"
#include "tests/unit/worker/transfer/fake_server.h"

namespace sft::worker {
namespace {

using ::testing::HasSubstr;

constexpr char kUid[] = "attempt-bcdfghjkmn";

class JudgeDeskTest : public TestNode {
 protected:
  io::UniqueFd Connect() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = setup_.JudgeSocket(kUid);
    memcpy(address.sun_path, path.data(), path.size());
    io::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM, 0));
    // The desk's thread may still be on its way.
    while (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      Clock::Real().Sleep(std::chrono::milliseconds(10));
    }
    return fd;
  }
  static std::string LineOf(int fd) {
    std::string line;
    char letter = 0;
    while (recv(fd, &letter, 1, 0) == 1 && letter != '\n') line += letter;
    return line;
  }
  std::string Ask(const std::string& question) {
    const io::UniqueFd fd = Connect();
    EXPECT_EQ(send(fd.get(), question.data(), question.size(), 0),
              static_cast<ssize_t>(question.size()));
    return LineOf(fd.get());
  }

  FakeServer server_;
};

TEST_F(JudgeDeskTest, AQuestionGoesToTheServerAsThatOfItsAttempt) {
  v1::AskJudgeRequest asked;
  absl::StatusOr<v1::AskJudgeResponse> answer = v1::AskJudgeResponse();
  server_.judge = [&](const v1::AskJudgeRequest& request) {
    asked = request;
    return answer;
  };
  const JudgeDesk desk(setup_, server_, kUid, 3);
  answer->set_text("Score: 5\n");
  EXPECT_EQ(Ask("{\"grader\":\"good\",\"prompt\":\"how?\"}\n"), "{\"text\":\"Score: 5\\n\"}");
  EXPECT_EQ(asked.attempt_uid(), kUid);
  EXPECT_EQ(asked.epoch(), 3);
  EXPECT_EQ(asked.node(), setup_.node);
  EXPECT_EQ(asked.grader(), "good");
  EXPECT_EQ(asked.prompt(), "how?");
  answer->set_error("HTTP status 429");
  answer->set_again(true);
  answer->set_after_seconds(2);
  EXPECT_EQ(Ask("{\"grader\":\"good\",\"prompt\":\"how?\"}\n"),
            "{\"after\":2.0,\"again\":true,\"error\":\"HTTP status 429\"}");
  answer = Unavailable("no connection");
  EXPECT_EQ(Ask("{\"grader\":\"good\",\"prompt\":\"how?\"}\n"),
            "{\"away\":true,\"busy\":false,\"error\":\"no connection\"}");
  answer = ResourceExhausted("no place");
  EXPECT_EQ(Ask("{\"grader\":\"good\",\"prompt\":\"how?\"}\n"),
            "{\"away\":true,\"busy\":true,\"error\":\"no place\"}");
  answer = FailedPrecondition("the attempt is over");
  EXPECT_EQ(Ask("{\"grader\":\"good\",\"prompt\":\"how?\"}\n"),
            "{\"away\":false,\"busy\":false,\"error\":\"the attempt is over\"}");
  asked.Clear();
  EXPECT_EQ(Ask("what?\n"), "") << "no question";
  EXPECT_EQ(asked.grader(), "");
}

TEST_F(JudgeDeskTest, ARankThatTakesNoAnswerKeepsNoWorkerWaiting) {
  std::atomic<bool> asked = false;
  server_.judge = [&](const v1::AskJudgeRequest&) {
    asked = true;
    v1::AskJudgeResponse answer;
    answer.set_text(std::string(size_t{8} << 20, 'a'));  // more than a socket holds
    return answer;
  };
  const auto desk = std::make_unique<JudgeDesk>(setup_, server_, kUid, 1);
  const io::UniqueFd fd = Connect();
  const std::string question = "{\"grader\":\"good\"}\n";
  EXPECT_EQ(send(fd.get(), question.data(), question.size(), 0),
            static_cast<ssize_t>(question.size()));
  char letter = 0;  // the answer is being sent
  EXPECT_EQ(recv(fd.get(), &letter, 1, 0), 1);
  EXPECT_TRUE(asked);
  // The test ends: destroying the desk does not wait for who reads it.
}

TEST_F(JudgeDeskTest, ItIsThereAgainAfterTheWorkersRestart) {
  server_.judge = [](const v1::AskJudgeRequest&) {
    v1::AskJudgeResponse answer;
    answer.set_text("yes");
    return answer;
  };
  for (int life = 0; life < 2; ++life) {
    const JudgeDesk desk(setup_, server_, kUid, 1);
    EXPECT_EQ(Ask("{\"grader\":\"good\"}\n"), "{\"text\":\"yes\"}");
  }
  EXPECT_FALSE(io::Exists(setup_.JudgeSocket(kUid)));
}

}  // namespace
}  // namespace sft::worker
