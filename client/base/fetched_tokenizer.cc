#include "client/base/fetched_tokenizer.h"

#include <fmt/format.h>

#include <fstream>
#include <map>
#include <utility>

#include "client/base/interrupt.h"
#include "client/output/text.h"
#include "common/io/file.h"
#include "common/io/model_folder.h"
#include "sft/v1/cluster_service.grpc.pb.h"

namespace sft::client {
namespace {

// The largest published tokenizers have some 35 MB.
constexpr size_t kMostBytes = 256 << 20;

}  // namespace

FetchedTokenizer::FetchedTokenizer(FetchedTokenizer&& other) noexcept
    : folder_(std::exchange(other.folder_, "")) {}

FetchedTokenizer& FetchedTokenizer::operator=(FetchedTokenizer&& other) noexcept {
  std::swap(folder_, other.folder_);
  return *this;
}

FetchedTokenizer::~FetchedTokenizer() {
  if (!folder_.empty()) (void)io::RemoveAll(folder_);
}

absl::StatusOr<FetchedTokenizer> FetchedTokenizer::Fetch(Connection& connection,
                                                         const std::string& model) {
  grpc::ClientContext context;
  Interrupt interrupt(context);
  v1::ReadTokenizerRequest request;
  request.set_model(model);
  const auto reader = connection.To<v1::ClusterService>().ReadTokenizer(&context, request);
  std::map<std::string, std::string> files;
  size_t bytes = 0;
  v1::ReadTokenizerResponse part;
  while (reader->Read(&part)) {
    bytes += part.data().size();
    if (!io::IsTextFile(part.file()) || bytes > kMostBytes) {
      context.TryCancel();
      return Internal(fmt::format("{} sends what is no tokenizer: {}", connection.server(),
                                  OneLine(part.file())));
    }
    files[part.file()] += part.data();
  }
  SFT_RETURN_IF_ERROR(connection.Describe(reader->Finish()));
  FetchedTokenizer fetched;
  SFT_ASSIGN_OR_RETURN(fetched.folder_, io::MakeTempDir("sftctl-model"));
  for (const auto& [name, text] : files) {
    SFT_RETURN_IF_ERROR(io::WriteFileAtomic(fmt::format("{}/{}", fetched.folder_, name), text));
  }
  return fetched;
}

}  // namespace sft::client
