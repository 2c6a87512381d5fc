#include "client/base/server_choice.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <memory>

#include "client/base/login.h"
#include "common/base/version.h"
#include "common/rpc/endpoint.h"
#include "sft/v1/cluster_service.grpc.pb.h"

namespace sft::client {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatience{5000}, kPatienceForOthers{500};

// One question to one server.
struct Question {
  grpc::ClientContext context;
  std::unique_ptr<v1::ClusterService::Stub> stub;
  std::unique_ptr<grpc::ClientAsyncResponseReader<v1::ServerInfo>> reader;
  v1::ServerInfo answer;
  grpc::Status status;
};

std::chrono::system_clock::time_point From(milliseconds patience) {
  return std::chrono::system_clock::now() + patience;
}

}  // namespace

std::vector<ServerCandidate> CandidatesOf(const std::string& servers) {
  std::vector<ServerCandidate> candidates;
  for (const rpc::Endpoint& endpoint :
       rpc::ParseEndpoints(servers).value_or(std::vector<rpc::Endpoint>())) {
    candidates.push_back({endpoint.ToString(), SecurityOf(endpoint.ToString())});
  }
  const auto known = std::find_if(candidates.begin(), candidates.end(), [](const auto& candidate) {
    return candidate.security.ok() && !candidate.security->authority_pem.empty();
  });
  for (ServerCandidate& candidate : candidates) {
    if (known != candidates.end() && !candidate.security.ok()) {
      candidate.security = known->security;
    }
  }
  return candidates;
}

size_t ChooseServer(const std::vector<ServerCandidate>& candidates) {
  grpc::CompletionQueue queue;
  std::vector<std::unique_ptr<Question>> questions(candidates.size());
  v1::GetServerInfoRequest request;
  request.set_client_version(kVersion);
  request.set_client_protocol(kProtocol);
  size_t open = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!candidates[i].security.ok()) continue;
    auto& asked = questions[i] = std::make_unique<Question>();
    asked->stub = v1::ClusterService::NewStub(
        rpc::MakeChannel(candidates[i].address, *candidates[i].security));
    asked->reader = asked->stub->AsyncGetServerInfo(&asked->context, request, &queue);
    asked->reader->Finish(&asked->answer, &asked->status, asked.get());
    ++open;
  }
  size_t best = candidates.size();
  auto deadline = From(kPatience);
  void* tag = nullptr;
  bool ok = false;
  while (open > 0 && queue.AsyncNext(&tag, &ok, deadline) == grpc::CompletionQueue::GOT_EVENT) {
    --open;
    const auto found = std::find_if(questions.begin(), questions.end(),
                                    [&](const auto& asked) { return asked.get() == tag; });
    const size_t index = static_cast<size_t>(found - questions.begin());
    if (!(*found)->status.ok()) continue;
    deadline = std::min(deadline, From(kPatienceForOthers));
    const int64_t generation = (*found)->answer.generation();
    if (best == candidates.size() || generation > questions[best]->answer.generation()) {
      best = index;
    }
  }
  for (const auto& asked : questions) {
    if (asked != nullptr) asked->context.TryCancel();
  }
  for (; open > 0 && queue.Next(&tag, &ok); --open) {
  }
  return best == candidates.size() ? 0 : best;
}

}  // namespace sft::client
