// Two small programs for bench/serving.py: a net/http server that answers a constant to a POST over TLS (the limit
// that Unwind's server is measured against), and the load generator that calls both of them.
//
//	echo serve CERT KEY               prints its address, answers until standard input closes
//	echo load ADDRESS CA CALLERS SECONDS BODY PATH   prints one JSON line; BODY is a number of bytes, or a file with a
//	                                  body in each line, which are sent in turn
package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

// The size of an AdmissionReview's answer.
var answer = []byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"705ab4f5-6393-11e8-b7cc-42010a800002","allowed":true}}`)

func main() {
	log.SetFlags(0)
	if len(os.Args) == 4 && os.Args[1] == "serve" {
		serve(os.Args[2], os.Args[3])
	} else if len(os.Args) == 8 && os.Args[1] == "load" {
		load(os.Args[2], os.Args[3], number(os.Args[4]), number(os.Args[5]), bodies(os.Args[6]), os.Args[7])
	} else {
		log.Fatal("usage: echo serve CERT KEY | echo load ADDRESS CA CALLERS SECONDS BODY PATH")
	}
}

func serve(certificate, key string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	fmt.Println(listener.Addr())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	handler := http.NewServeMux()
	// What every Go webhook does: read the body, bounded, then write the answer.
	handler.HandleFunc("POST /constant", func(writer http.ResponseWriter, request *http.Request) {
		if _, err := io.ReadAll(http.MaxBytesReader(writer, request.Body, 3<<20)); err != nil {
			http.Error(writer, err.Error(), http.StatusBadRequest)
			return
		}
		writer.Header().Set("Content-Type", "application/json")
		writer.Write(answer)
	})
	check(http.ServeTLS(listener, handler, certificate, key))
}

type result struct {
	Requests  int     `json:"requests"`
	Failures  int     `json:"failures"`
	Seconds   float64 `json:"seconds"`
	P50       float64 `json:"p50"`
	P99       float64 `json:"p99"`
	Connected int     `json:"connected"`
}

// load does as little as it can for a request, so that what is measured is the other side: the requests are made
// once, and the answer is read only for its status and length.
func load(address, authority string, callers, seconds int, bodies [][]byte, path string) {
	pem, err := os.ReadFile(authority)
	check(err)
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		log.Fatal("no certificate in ", authority)
	}
	config := &tls.Config{RootCAs: pool, ServerName: "localhost"}
	requests := make([][]byte, len(bodies))
	for number, body := range bodies {
		requests[number] = fmt.Appendf(nil, "POST %s?timeout=10s HTTP/1.1\r\nHost: localhost\r\nUser-Agent: kube-apiserver-admission\r\n"+
			"Content-Length: %d\r\nAccept: application/json, */*\r\nContent-Type: application/json\r\n\r\n%s", path, len(body), body)
	}

	connections := make([]*tls.Conn, callers)
	for number := range connections {
		connections[number], err = tls.Dial("tcp", address, config)
		check(err)
	}
	var group sync.WaitGroup
	times := make([][]time.Duration, callers)
	failures := make([]int, callers)
	began := time.Now()
	ends := began.Add(time.Duration(seconds) * time.Second)
	for number, connection := range connections {
		group.Add(1)
		go func() {
			defer group.Done()
			reader := bufio.NewReaderSize(connection, 4096)
			for next := number; ; next += callers {
				start := time.Now()
				if start.After(ends) {
					return
				}
				if _, err := connection.Write(requests[next%len(requests)]); err != nil {
					failures[number]++
					return
				}
				ok, err := answered(reader)
				if err != nil {
					failures[number]++
					return
				}
				if !ok {
					failures[number]++
				}
				times[number] = append(times[number], time.Since(start))
			}
		}()
	}
	group.Wait()
	took := time.Since(began).Seconds()
	all := slices.Concat(times...)
	slices.Sort(all)
	failed := 0
	for _, count := range failures {
		failed += count
	}
	if len(all) == 0 {
		log.Fatal("nothing was answered")
	}
	check(json.NewEncoder(os.Stdout).Encode(result{
		Requests: len(all), Failures: failed, Seconds: took, Connected: callers,
		P50: all[len(all)/2].Seconds(), P99: all[len(all)*99/100].Seconds(),
	}))
}

// answered reads one answer, and says whether it was 200.
func answered(reader *bufio.Reader) (bool, error) {
	line, err := reader.ReadSlice('\n')
	if err != nil {
		return false, err
	}
	ok := bytes.HasPrefix(line, []byte("HTTP/1.1 200 "))
	length := 0
	for {
		line, err = reader.ReadSlice('\n')
		if err != nil {
			return false, err
		}
		if len(line) <= 2 {
			break
		}
		if name, value, found := bytes.Cut(line, []byte(":")); found && bytes.EqualFold(name, []byte("content-length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return false, err
			}
		}
	}
	_, err = reader.Discard(length)
	return ok, err
}

func bodies(text string) [][]byte {
	if size, err := strconv.Atoi(text); err == nil {
		return [][]byte{bytes.Repeat([]byte("x"), size)}
	}
	content, err := os.ReadFile(text)
	check(err)
	return bytes.Split(bytes.TrimSpace(content), []byte("\n"))
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
