# The build runs on the builder's own platform and compiles for the target's.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ARG TARGETOS TARGETARCH
# What legwork version answers, for example 1.2.3.
ARG RELEASE=
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -ldflags="-s -w -X main.release=$RELEASE" -o /legwork ./cmd/legwork

# CA certificates and a user that is not root, and neither a shell nor a libc.
FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /legwork /usr/local/bin/legwork
USER nonroot
ENTRYPOINT ["/usr/local/bin/legwork"]
CMD ["worker"]
