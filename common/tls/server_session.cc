#include "common/tls/server_session.h"

#include <string>
#include <utility>

#include "common/tls/openssl.h"

namespace sft::tls {

struct ServerContext::Parts {
  SslContext context;
  std::string protocols;  // as ALPN writes them: each behind its length
};

struct ServerSession::Parts {
  Ssl ssl;
  bool broken = false;
};

namespace {

int ChooseProtocol(SSL*, const unsigned char** chosen, unsigned char* length,
                   const unsigned char* offered, unsigned int size, void* ours) {
  const std::string& protocols = *static_cast<const std::string*>(ours);
  unsigned char* found = nullptr;
  const int result = SSL_select_next_proto(
      &found, length, reinterpret_cast<const unsigned char*>(protocols.data()),
      static_cast<unsigned int>(protocols.size()), offered, size);
  *chosen = found;
  return result == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

absl::Status UseIdentity(SSL_CTX* context, const Identity& identity) {
  const Bio key_text = MemoryOf(identity.key_pem);
  const Key key(PEM_read_bio_PrivateKey(key_text.get(), nullptr, nullptr, nullptr));
  if (key == nullptr) return InvalidArgument("the key is no private key in PEM");
  SFT_ASSIGN_OR_RETURN(const X509Ptr own, ParseCertificate(identity.certificate_pem));
  if (SSL_CTX_use_certificate(context, own.get()) != 1 ||
      SSL_CTX_use_PrivateKey(context, key.get()) != 1 || SSL_CTX_check_private_key(context) != 1) {
    ERR_clear_error();
    return InvalidArgument("the key is not the certificate's, or the certificate is too weak");
  }
  const Bio chain = MemoryOf(identity.certificate_pem);
  X509Ptr first(PEM_read_bio_X509(chain.get(), nullptr, nullptr, nullptr));
  while (X509* const next = PEM_read_bio_X509(chain.get(), nullptr, nullptr, nullptr)) {
    if (SSL_CTX_add0_chain_cert(context, next) == 1) continue;  // now the context's
    const X509Ptr unused(next);
    return LibraryError("the certificate's chain");
  }
  ERR_clear_error();  // the end of the text
  return absl::OkStatus();
}

ServerSession::Next NextOf(SSL* ssl, int result, bool& broken) {
  using Next = ServerSession::Next;
  const int error = SSL_get_error(ssl, result);
  if (error == SSL_ERROR_WANT_READ) return Next::kWaitRead;
  if (error == SSL_ERROR_WANT_WRITE) return Next::kWaitWrite;
  ERR_clear_error();
  if (error == SSL_ERROR_ZERO_RETURN) return Next::kEnded;
  broken = true;
  return Next::kBroken;
}

}  // namespace

ServerContext::ServerContext(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
ServerContext::~ServerContext() = default;

absl::StatusOr<std::unique_ptr<ServerContext>> ServerContext::Make(const Identity& identity,
                                                                   std::string_view protocol) {
  auto parts = std::make_unique<Parts>();
  parts->context.reset(SSL_CTX_new(TLS_server_method()));
  SSL_CTX* const context = parts->context.get();
  if (context == nullptr) return LibraryError("cannot prepare TLS");
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_options(
      context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  SFT_RETURN_IF_ERROR(UseIdentity(context, identity));
  parts->protocols = std::string(1, static_cast<char>(protocol.size())).append(protocol);
  SSL_CTX_set_alpn_select_cb(context, ChooseProtocol, &parts->protocols);
  return std::unique_ptr<ServerContext>(new ServerContext(std::move(parts)));
}

ServerSession::ServerSession(const ServerContext& context, int socket)
    : parts_(std::make_unique<Parts>()) {
  parts_->ssl.reset(SSL_new(context.parts_->context.get()));
  parts_->broken = parts_->ssl == nullptr || SSL_set_fd(parts_->ssl.get(), socket) != 1;
  if (!parts_->broken) SSL_set_accept_state(parts_->ssl.get());
}

ServerSession::~ServerSession() = default;

ServerSession::Next ServerSession::Read(char* bytes, size_t size, size_t& moved) {
  if (parts_->broken) return Next::kBroken;
  ERR_clear_error();
  const int result = SSL_read_ex(parts_->ssl.get(), bytes, size, &moved);
  return result == 1 ? Next::kMoved : NextOf(parts_->ssl.get(), result, parts_->broken);
}

ServerSession::Next ServerSession::Write(std::string_view bytes, size_t& moved) {
  if (parts_->broken) return Next::kBroken;
  ERR_clear_error();
  const int result = SSL_write_ex(parts_->ssl.get(), bytes.data(), bytes.size(), &moved);
  return result == 1 ? Next::kMoved : NextOf(parts_->ssl.get(), result, parts_->broken);
}

void ServerSession::Close() {
  if (parts_->broken || SSL_is_init_finished(parts_->ssl.get()) != 1) return;
  SSL_shutdown(parts_->ssl.get());
  ERR_clear_error();
}

}  // namespace sft::tls
