#include "server/rpc/connection_cap.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <vector>

#include "common/base/version.h"
#include "common/io/file.h"
#include "tests/unit/server/loopback.h"
#include "tests/unit/server/services/services_fixture.h"

namespace sft::server {
namespace {

using std::chrono::milliseconds;

constexpr int kMost = 40;  // connections

// A server with limits of its own for connections.
class ConnectionCapTest : public testing::Test {
 protected:
  ConnectionCapTest() : dir_(io::MakeTempDir("connections-test").value()) {}
  void Start(const GrpcServer::Connections& connections) {
    Server::Settings settings;
    settings.data_dir = dir_;
    settings.listen = {"127.0.0.1", 0};
    settings.http = "off";
    settings.connections = connections;
    server_ = Server::Start(settings, Clock::Real()).value();
    port_ = std::stoi(server_->address().substr(server_->address().rfind(':') + 1));
  }
  ~ConnectionCapTest() override {
    server_.reset();
    (void)io::RemoveAll(dir_);
  }

  io::UniqueFd Dial() const { return server::Dial(port_); }
  // Waits until the server has closed it.
  static bool Ends(const io::UniqueFd& fd) {
    char bytes[256];
    pollfd polled{fd.get(), POLLIN, 0};
    while (poll(&polled, 1, 120'000) > 0) {
      if (read(fd.get(), bytes, sizeof bytes) <= 0) return true;
    }
    return false;
  }
  std::shared_ptr<grpc::Channel> Channel() const {
    grpc::ChannelArguments own;
    own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(), own);
  }
  static grpc::Status Call(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    rpc::SetDeadline(context, std::chrono::seconds(120));
    context.set_wait_for_ready(true);
    v1::ListModelsResponse response;
    return v1::ClusterService::NewStub(channel)->ListModels(&context, {}, &response);
  }

  const std::string dir_;
  std::unique_ptr<Server> server_;
  int port_ = 0;
};

TEST_F(ConnectionCapTest, SilentConnectionsEndAndStreamsGoOn) {
  Start({.idle = milliseconds(500), .handshake = milliseconds(500)});
  const auto worker = Channel();
  grpc::ClientContext context;
  const auto stream = v1::WorkerService::NewStub(worker)->Session(&context);
  v1::WorkerMessage message;
  v1::Register& hello = *message.mutable_register_();
  hello.set_node("a");
  hello.set_incarnation("life");
  hello.set_version(kVersion);
  hello.set_protocol(kProtocol);
  hello.set_hostname("host");
  ASSERT_TRUE(stream->Write(message));
  v1::ServerMessage answer;
  ASSERT_TRUE(stream->Read(&answer));
  const auto client = Channel();
  ASSERT_TRUE(Call(client).ok());
  std::vector<io::UniqueFd> dialled;
  for (int i = 0; i < 100; ++i) dialled.push_back(Dial());
  for (const io::UniqueFd& fd : dialled) ASSERT_TRUE(Ends(fd));
  EXPECT_TRUE(Call(client).ok()) << "one that was closed while it was idle dials again";
  message.mutable_observed()->set_sequence(1);
  ASSERT_TRUE(stream->Write(message));
  while (stream->Read(&answer) && !answer.has_observed_answer()) continue;
  EXPECT_EQ(answer.observed_answer().sequence(), 1) << "a stream is not idle";
  context.TryCancel();
  (void)stream->Finish();
}

// Nothing but the cap ends them: nobody waits for the silence of others.
TEST_F(ConnectionCapTest, ThoseTooManyAreClosedAndThereIsRoomWhenTheOthersAre) {
  Start({.most = kMost, .idle = std::chrono::hours(1), .handshake = std::chrono::hours(1)});
  std::vector<io::UniqueFd> open;
  for (int i = 0; i < 300; ++i) open.push_back(Dial());
  while (open.size() > kMost) {
    std::vector<pollfd> polled;
    for (const io::UniqueFd& fd : open) polled.push_back({fd.get(), POLLIN | POLLRDHUP, 0});
    ASSERT_GT(poll(polled.data(), polled.size(), 120'000), 0) << open.size() << " are held";
    for (size_t i = open.size(); i-- > 0;) {
      char bytes[256];
      if (polled[i].revents == 0) continue;
      if (read(open[i].get(), bytes, sizeof bytes) <= 0) {
        open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
  }
  EXPECT_EQ(open.size(), kMost);
  open.clear();
  EXPECT_TRUE(Call(Channel()).ok());
}

// The library's own listening would end at the first accept that fails.
TEST_F(ConnectionCapTest, AServerThatRanOutOfDescriptorsAcceptsAgain) {
  Start({.most = 100'000, .idle = std::chrono::hours(1), .handshake = std::chrono::hours(1)});
  ASSERT_TRUE(Call(Channel()).ok());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<io::UniqueFd> open;
  for (int i = 0; i < 20; ++i) open.push_back(Dial());
  // None is left, neither for the server's end of a connection nor for ours.
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(open.back().get());
  std::vector<io::UniqueFd> waiting;
  for (int i = 0; i < 20; ++i) {
    waiting.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  for (const io::UniqueFd& fd : waiting) Connect(fd, port_);
  std::this_thread::sleep_for(milliseconds(300));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(Call(Channel()).ok());
}

TEST(ConnectionCap, ItHoldsSoManyAndForgetsThoseThatAreClosed) {
  FakeClock clock;
  ConnectionCap cap(2, clock);
  io::UniqueFd sockets[4];
  for (auto& each : sockets) {
    each = io::UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  }
  EXPECT_TRUE(cap.Takes(sockets[0].get()));
  EXPECT_TRUE(cap.Takes(sockets[1].get()));
  EXPECT_FALSE(cap.Takes(sockets[2].get()));
  sockets[0] = io::UniqueFd();
  clock.Advance(milliseconds(150));
  EXPECT_TRUE(cap.Takes(sockets[3].get()));
}

TEST(ConnectionCap, ItLeavesDescriptorsForTheRest) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  for (const auto& [files, most] : {std::pair(256, 128), {1000, 744}, {4000, 3000}}) {
    rlimit limit = before;
    limit.rlim_cur = static_cast<rlim_t>(files);
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) continue;  // more than this process may have
    EXPECT_EQ(ConnectionCap::Default(), most);
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace sft::server
