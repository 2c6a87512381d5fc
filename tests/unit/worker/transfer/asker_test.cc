#include "worker/transfer/asker.h"

#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <thread>

#include "tests/unit/worker/base/test_node.h"
#include "tests/unit/worker/transfer/fake_server.h"

namespace sft::worker {
namespace {

using ::testing::HasSubstr;

constexpr char kUid[] = "attempt-bcdfghjkmn";

class AskerTest : public TestNode {
 protected:
  // A process that takes one question and answers with `answer`.
  void Serve(const std::string& answer) {
    ASSERT_TRUE(io::MakeDirs(setup_.data_dir + "/run").ok());
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = setup_.ServeSocket(kUid);
    ASSERT_LT(path.size(), sizeof(address.sun_path));
    memcpy(address.sun_path, path.data(), path.size());
    listener_ = io::UniqueFd(socket(AF_UNIX, SOCK_STREAM, 0));
    ASSERT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(listen(listener_.get(), 1), 0);
    process_ = std::thread([this, answer] {
      const io::UniqueFd fd(accept(listener_.get(), nullptr, nullptr));
      char letter = 0;
      while (recv(fd.get(), &letter, 1, 0) == 1 && letter != '\n') question_ += letter;
      EXPECT_EQ(send(fd.get(), answer.data(), answer.size(), 0),
                static_cast<ssize_t>(answer.size()));
    });
  }
  // What the server got.
  std::string Ask(const std::string& uid) {
    v1::Ask ask;
    ask.set_request("fetch-1");
    ask.set_attempt_uid(uid);
    ask.set_question("{\"prompt\":\"a\"}");
    {
      Asker asker(setup_, server_);
      asker.Ask(ask);
    }
    if (process_.joinable()) process_.join();
    return server_.lines["fetch-1"];
  }

  FakeServer server_;
  io::UniqueFd listener_;
  std::thread process_;
  std::string question_;
};

TEST_F(AskerTest, TheQuestionIsPassedOnAndTheAnswersLinesComeBack) {
  Serve("{\"text\":\"b\"}\n{\"finish_reason\":\"stop\"}\n");
  EXPECT_EQ(Ask(kUid), "{\"text\":\"b\"}\n{\"finish_reason\":\"stop\"}\n");
  EXPECT_EQ(question_, "{\"prompt\":\"a\"}");
}

TEST_F(AskerTest, AProcessThatIsNotThereYetAndANameThatIsNoneAreSaid) {
  EXPECT_THAT(Ask(kUid), HasSubstr("not loaded yet"));
  server_.lines.clear();
  EXPECT_THAT(Ask("../../etc"), HasSubstr("no attempt"));
}

}  // namespace
}  // namespace sft::worker
