#include "client/base/server_choice.h"

#include <grpc/support/time.h>
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

constexpr milliseconds kAnswerIn{5000}, kPatienceForOthers{500};

// One question to one server.
struct Question {
  grpc::ClientContext context;
  std::unique_ptr<v1::ClusterService::Stub> stub;
  std::unique_ptr<grpc::ClientAsyncResponseReader<v1::ServerInfo>> reader;
  v1::ServerInfo answer;
  grpc::Status status;
};

// The next answer of the queue; a time span is counted from now.
bool NextAnswer(grpc::CompletionQueue& queue, bool answered, void** tag) {
  bool ok = false;
  if (!answered) return queue.Next(tag, &ok);
  const auto patience = gpr_time_from_millis(kPatienceForOthers.count(), GPR_TIMESPAN);
  return queue.AsyncNext(tag, &ok, patience) == grpc::CompletionQueue::GOT_EVENT;
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
    rpc::SetDeadline(asked->context, kAnswerIn);
    asked->stub = v1::ClusterService::NewStub(
        rpc::MakeChannel(candidates[i].address, *candidates[i].security));
    asked->reader = asked->stub->AsyncGetServerInfo(&asked->context, request, &queue);
    asked->reader->Finish(&asked->answer, &asked->status, asked.get());
    ++open;
  }
  size_t best = candidates.size();
  void* tag = nullptr;
  while (open > 0 && NextAnswer(queue, best < candidates.size(), &tag)) {
    --open;
    const auto found = std::find_if(questions.begin(), questions.end(),
                                    [&](const auto& asked) { return asked.get() == tag; });
    if (!(*found)->status.ok()) continue;
    const int64_t generation = (*found)->answer.generation();
    if (best == candidates.size() || generation > questions[best]->answer.generation()) {
      best = static_cast<size_t>(found - questions.begin());
    }
  }
  for (const auto& asked : questions) {
    if (asked != nullptr) asked->context.TryCancel();
  }
  for (bool ok = false; open > 0 && queue.Next(&tag, &ok); --open) {
  }
  return best == candidates.size() ? 0 : best;
}

}  // namespace sft::client
